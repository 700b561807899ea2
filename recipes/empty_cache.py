"""Emptying the CUDA cache at every step

What it does: Compares a loop that calls `torch.cuda.empty_cache()` after each step, as articles on saving memory
recommend, with a loop that never does. `every_step_with_del` also deletes the batch first, to free its memory.

Why it helps: It does not. PyTorch keeps freed memory for later tensors. Emptying the cache returns the memory to the
driver, and the next step asks for it again. A loop that empties the cache becomes faster without the call.

When it does not: PyTorch uses its cached memory for any of its tensors, so emptying the cache does not make a larger
batch fit; deleting tensors does. Empty it once if another process needs the memory, or if the sizes change.

Numerics: exact: it changes no values.

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
        # Without a loader, every step uses the same batch, so it cannot be deleted.
        deletable = facts.workload.loader is not None
        return ["every_step", "every_step_with_del"] if deletable else ["every_step"]
