"""Parts of the model that are sharded by themselves

What it does: With `blocks`, fully_shard gathers the parameters of one repeated block of the model at a time. With
`model` it gathers all parameters at once, before the forward pass.

Why it helps: `model` sends one large message instead of many small ones, whose latency matters if blocks are small.

When it does not: With `model`, all parameters are in memory at once, and nothing is computed while they are gathered.

Numerics: exact: the same gradients reach the optimizer.

References: PyTorch documentation, torch.distributed.fsdp.fully_shard: communication groups.
"""

from advisor.recipe import ParallelRecipe


class ShardUnit(ParallelRecipe):
    key = "parallel.shard_unit"
    strategies = frozenset({"fully_shard"})
    gain = 1.01  # an estimate, which only orders the trials
    codes = {
        "blocks": "for block in model.children():\n    fully_shard(block)\nfully_shard(model)\n",
        "model": "fully_shard(model)\n",
    }
