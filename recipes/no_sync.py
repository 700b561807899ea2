"""No exchange between updates

What it does: If several batches make one update, the ranks exchange their gradients only after the last batch.

Why it helps: Each batch without an exchange saves a whole all-reduce: three of four, with four batches in an update.

When it does not: Without accumulation every batch makes an update, so every exchange is needed. With fully_shard the
gradients are not sharded between the batches, which takes the memory that sharding saves.

Numerics: exact, up to the order of sums.

References: PyTorch documentation, DistributedDataParallel.no_sync and FSDPModule.set_requires_gradient_sync.
"""

from advisor.recipe import Facts, ParallelRecipe, Proposal, Skip


class NoSync(ParallelRecipe):
    key = "parallel.no_sync"
    strategies = frozenset({"ddp", "fully_shard"})
    gain = 1.05
    codes = {
        True: """\
with model.no_sync():  # for all batches of an update but the last
    loss_fn(model(inputs.to(device)), targets.to(device)).backward()
"""
    }

    def candidates(self, facts: Facts) -> Proposal:
        if facts.current("step.accumulate", 1) == 1:
            return Skip("without accumulation every batch makes an update, so every exchange is needed")
        return [True]
