"""Deterministic algorithms off

What it does: Switches off `torch.use_deterministic_algorithms` and `torch.backends.cudnn.deterministic` if the program
has them on. `CUBLAS_WORKSPACE_CONFIG` stays, because CUDA reads it only at its start.

Why it helps: Deterministic algorithms avoid atomic additions and cuDNN's fastest kernels. Scatter and index operations,
interpolation and the backward passes of convolutions lose the most. New tensors are also filled before they are used.

When it does not: Models of matrix products and pointwise operations use deterministic kernels anyway. Keep determinism
on while you look for a difference between two runs.

Numerics: close: sums are computed in another order, which can differ from run to run.

References: PyTorch documentation, Reproducibility; torch.use_deterministic_algorithms; torch.utils.deterministic.
"""

from advisor.recipe import Bottleneck, Facts, Proposal, Recipe, Skip, Stage


class DeterministicOff(Recipe):
    key = "backends.deterministic"
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    usual = frozenset({False})
    stage = Stage.GLOBAL
    gains = {True: 0.8}  # tests/gpu/RESULTS.md: switching it off gave 0.98x (on a CPU) to 4.78x
    here = {False: "Your program asks for deterministic algorithms; this is what they cost."}
    shown = "torch.use_deterministic_algorithms({value})\ntorch.backends.cudnn.deterministic = {value}\n"

    def candidates(self, facts: Facts) -> Proposal:
        return [False] if facts.current(self.key, self.default) else Skip("determinism is off already")
