"""Gradients as views of the buckets

What it does: Makes each parameter's gradient a view of the bucket that DistributedDataParallel sends, not a copy.

Why it helps: It saves one copy of all gradients per step, and as much memory as the gradients take.

When it does not: The copy is a small share of a long step. Do not call `detach_()` on a gradient; clear gradients with
`optimizer.zero_grad()`.

Numerics: exact: the same gradients reach the optimizer.

References: PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
"""

from advisor.recipe import ParallelRecipe


class GradientAsBucketView(ParallelRecipe):
    key = "parallel.gradient_as_bucket_view"
    gain = 1.01
