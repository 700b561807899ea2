"""Samples dealt by length

What it does
------------
Deals the samples of each batch to the GPUs in the order of their lengths, so that all get about as many long ones. The
batches themselves stay as they are drawn.

Why it helps
------------
All GPUs wait for the one with the longest samples. A batch that is cut in the order in which it was drawn leaves that
to chance.

When it does not
----------------
Samples of one length leave nothing to balance. Where a batch holds few samples for each GPU, batches of like lengths
(`length_bucketing`) help more, but change the order of the samples.

Numerics
--------
close: the same samples make an update, in another order of sums. What depends on the samples beside one sees others:
padding, batch norms, a loss that is averaged over the tokens of each GPU.

References
----------
Zeng et al., Boosting Distributed Training Performance of the Unpadded BERT Model, 2022, on load balance.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe, why_no_uneven_lengths
from advisor.records import Facts, Proposal, Skip, Value, Values

_CODE = """\
# with lengths[i], the length of sample i: this rank's part of a batch, a list of indices
by_length = sorted(batch, key=lengths.__getitem__)
rounds = [by_length[start : start + ranks] for start in range(0, len(by_length), ranks)]
part = [dealt[rank if place % 2 == 0 else ranks - 1 - rank] for place, dealt in enumerate(rounds)]
"""


class BalancedShares(ParallelRecipe):
    key = "parallel.balanced_shares"
    strategies = frozenset({"ddp", "fully_shard"})
    gain = 1.05
    codes = {True: _CODE, False: "# each rank gets a part of the batch in the order in which it was drawn\n"}

    def values_for(self, facts: Facts) -> Proposal:
        reason = why_no_uneven_lengths(facts)
        return Skip(reason) if reason else [True]

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value and settings.get("parallel.length_bucketing"):
            return "parallel.length_bucketing deals the samples of its batches by length, too"
        return super().conflict(value, settings)
