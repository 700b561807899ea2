"""Gradients copied to their bucket together

What it does
------------
Has DistributedDataParallel copy the gradients of a bucket into it in one operation when the bucket is full, and divide
the bucket once, in place of two operations for each gradient.

Why it helps
------------
A model with many small parameters launches hundreds of small kernels for these copies in each backward pass.

When it does not
----------------
The copies start later, so that a bucket is sent a little later. A few large parameters gain nothing, and with gradients
as views of their buckets nothing is copied in.

Numerics
--------
close: gradients are divided by the number of ranks in place of multiplied by its inverse, which rounds otherwise unless
that is a power of two.

References
----------
PyTorch documentation, torch.nn.parallel.DistributedDataParallel; https://github.com/pytorch/pytorch/pull/176638.
"""

from advisor.recipe.contract import torch_is_older
from advisor.recipe.parallel_recipe import ParallelRecipe
from advisor.records import Facts, Proposal, Skip

# The first version of PyTorch that is known to have it.
_SINCE = (2, 14)


class BatchedGradCopy(ParallelRecipe):
    key = "parallel.batched_grad_copy"
    # Expected speed-up: not measured yet, so that of a small gain.
    gain = 1.01

    def values_for(self, facts: Facts) -> Proposal:
        if torch_is_older(_SINCE):
            return Skip(f"PyTorch {facts.versions.get('torch', '')} copies each gradient by itself (2.14 can do both)")
        return [True]
