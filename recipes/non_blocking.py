"""Copies that do not block the host

What it does: Copies batches to the GPU with `non_blocking=True`, for a loader that pins its memory already.

Why it helps: During the copy, the host launches kernels and fetches the next batch. A blocking copy makes the host wait
for the copy and for every kernel launched before it.

When it does not: From memory that is not pinned, the copy blocks anyway: pin_memory sets both together. A step that is
bound by the GPU gains little, because the host has time to wait.

Numerics: exact: the step's kernels run after the copy in the same stream, so they see the whole batch.

References: PyTorch documentation, torch.Tensor.to. PyTorch tutorial, non_blocking and pin_memory().
"""

from advisor.recipe import CUDA, NO_LOADER, Bottleneck, Facts, Phase, Proposal, Recipe, Skip, Value


class NonBlocking(Recipe):
    key = "data.non_blocking"
    plan_field = "non_blocking"
    devices = CUDA
    attacks = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
    # The host does not wait for the copy: 1.20x and 1.09x with large copies (tests/gpu/RESULTS.md).
    saves = {Phase.HOST_TO_DEVICE: 0.5}

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if loader is None:
            return Skip(f"{NO_LOADER}: one batch stays on the GPU")
        if not loader.pin_memory:
            return Skip("the loader does not pin its memory, so copies block anyway; pin_memory tries both together")
        return [True]

    def code(self, value: Value) -> str:
        flag = ", non_blocking=True" if value else ""
        return f"inputs = inputs.to(device{flag})\ntargets = targets.to(device{flag})\n"
