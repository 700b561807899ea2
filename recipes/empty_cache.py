"""Emptying the CUDA cache at every step

What it does: Calls `torch.cuda.empty_cache()` after each step, as articles on saving memory recommend, and compares
that with a loop that never does; once also with `del` of the batch before it, which gives its memory back too.

Why it helps: It does not. PyTorch keeps freed memory for later tensors; emptying the cache gives it back to the driver,
and the next step asks for it again. A loop that empties the cache gains by leaving that out.

When it does not: PyTorch uses its cached memory for any tensor of its own, so emptying it does not let a larger batch
fit; deleting tensors does. Empty it once where another process needs the memory, or between phases of different sizes.

Numerics: exact: it moves no number.

References: PyTorch documentation, CUDA semantics, Memory management; torch.cuda.empty_cache.
"""

from advisor.recipe import CUDA, TRAINING, Facts, Proposal, Recipe


class EmptyCache(Recipe):
    key = "loop.empty_cache"
    codes = {
        "never": "# no torch.cuda.empty_cache() in the loop\n",
        "every_step": "torch.cuda.empty_cache()  # after each step\n",
        "every_step_with_del": "del inputs, targets\ntorch.cuda.empty_cache()  # after each step\n",
    }
    plan_field = "empty_cache"
    modes = TRAINING
    devices = CUDA
    inside_step = True
    habit = True
    gain = 0.95  # tests/gpu/RESULTS.md: 0.95x on an encoder

    def candidates(self, facts: Facts) -> Proposal:
        # The one batch of a workload without a loader serves every step: nobody can delete it.
        deletable = facts.workload.loader is not None
        return ["every_step", "every_step_with_del"] if deletable else ["every_step"]
