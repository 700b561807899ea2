"""Batch norms over all GPUs

What it does
------------
Batch norms compute mean and variance over the samples of all GPUs instead of one.

Why it helps
------------
It is not for speed: with few samples on each GPU (detection, segmentation) the statistics of one GPU are too noisy to
train with. The session measures what it costs.

When it does not
------------
Each batch norm exchanges its statistics in both passes, where nothing hides it: a ResNet's step becomes much slower.
With tens of samples on each GPU it is not needed.

Numerics
------------
changed: batch norms use the statistics of the whole batch, as one GPU would, not those of each GPU.

References
------------
PyTorch documentation, torch.nn.SyncBatchNorm.
"""

from advisor.recipe import CUDA
from advisor.recipe.parallel_recipe import ParallelRecipe
from advisor.records import Facts, Proposal, Skip


class SyncBatchNorm(ParallelRecipe):
    key = "parallel.sync_batch_norm"
    devices = CUDA
    strategies = frozenset({"ddp", "fully_shard"})
    gain = 0.9
    codes = {
        True: "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n",
        False: "# batch norms stay as they are\n",
    }

    def values_for(self, facts: Facts) -> Proposal:
        return [True] if facts.workload.has("batch_norm") else Skip("the model has no batch norms")
