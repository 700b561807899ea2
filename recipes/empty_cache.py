"""Emptying the CUDA cache at every step

What it does
------------
Calls `torch.cuda.empty_cache()` after each step, as articles on saving memory recommend, and compares that with a loop
that never does; once also with `del` of the batch before it, so that the batch's memory is given back too.

Why it helps
------------
It does not make a step faster. PyTorch keeps freed memory to hand it out again without asking the driver; emptying the
cache gives it back, and the next step asks for all of it anew. A loop that empties it gains by leaving that out.

When it does not
----------------
PyTorch can use its cached memory for every tensor of its own, so emptying it does not let a larger batch fit; deleting
tensors does, without emptying. It has a use when another process needs the GPU's memory, or once between two phases
whose tensors differ much in size.

Numerics
--------
exact: it moves no number.

References
----------
PyTorch documentation, CUDA semantics, Memory management; torch.cuda.empty_cache.
"""

from advisor.recipe import CUDA, TRAINING, Recipe
from advisor.records import Facts, Proposal, Value

_CODE: dict[Value, str] = {
    "never": "# no torch.cuda.empty_cache() in the loop\n",
    "every_step": "torch.cuda.empty_cache()  # after each step\n",
    "every_step_with_del": "del inputs, targets\ntorch.cuda.empty_cache()  # after each step\n",
}


class EmptyCache(Recipe):
    key = "loop.empty_cache"
    values = tuple(_CODE)
    plan_field = "empty_cache"
    modes = TRAINING
    devices = CUDA
    inside_step = True
    habit = True
    # Expected speed-up: 0.95x on an encoder (tests/gpu/RESULTS.md).
    gain = 0.95
    codes = _CODE

    def candidates(self, facts: Facts) -> Proposal:
        # The one batch of a workload without a loader serves every step: nobody can delete it.
        deletable = facts.workload.loader is not None
        return ["every_step", "every_step_with_del"] if deletable else ["every_step"]
