"""The same graph in every step

What it does
------------
Tells DistributedDataParallel that every step uses the same parameters in the same order, which it learns in the first.

Why it helps
------------
It looks for unused parameters once instead of in every step, lets activation checkpoints re-run freely, and sends
buckets in the order in which they were filled.

When it does not
------------
Training hangs or fails when later steps take other branches. Without unused parameters or checkpoints it gains little.

Numerics
------------
exact: the same gradients reach the optimizer.

References
------------
PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe


class StaticGraph(ParallelRecipe):
    key = "parallel.static_graph"
    gain = 1.01
