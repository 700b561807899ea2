"""Workers that live on between epochs

What it does:
Keeps the DataLoader's workers alive when an epoch ends (`persistent_workers=True`) instead of starting new ones.

Why it helps:
Starting workers takes tens of milliseconds each, more where they import packages or open files. The queue of batches is
then empty: the first steps of every epoch wait. Short epochs pay that often.

When it does not:
Only the ends of epochs gain, so in epochs of minutes it cannot be measured. Workers, and what their datasets have
cached, stay in memory. They do not see what the loop changes in the dataset between two epochs: a curriculum, a new
image size, another subset. A dataset with `set_epoch` is not given them.

Numerics:
exact: the same batches. Augmentation in the workers goes on with its random numbers, and the loader draws one number
less in each epoch, so later samples and orders differ as between two seeds.

References:
PyTorch documentation, torch.utils.data.DataLoader. PyTorch Performance Tuning Guide.
"""

from advisor.figures.formatting import format_seconds
from advisor.recipe import gain_from
from advisor.recipe.loader_recipe import WorkerRecipe
from advisor.records import Facts, LoaderFacts, Phase, Proposal, Skip, Value

# A trial measures for a few seconds; of longer epochs it sees no end.
_LONGEST_EPOCH_S = 10.0
# Time that starting the workers of an epoch anew takes. s; Linux, forked workers.
_START_S = 0.1


class PersistentWorkers(WorkerRecipe):
    key = "data.persistent_workers"
    usual = frozenset({True})
    without_workers = "the loader has no workers that could live on: num_workers tries some first"

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if loader.hears_of_epochs:
            return Skip("the dataset has set_epoch(), which workers that live on from epoch to epoch do not hear of")
        epoch_s = _epoch_seconds(facts)
        if epoch_s is not None and epoch_s > _LONGEST_EPOCH_S:
            return Skip(f"starting workers takes a small part of an epoch of about {format_seconds(epoch_s)}")
        return [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.16x and 1.69x with epochs of less than a second, nothing with long ones.
        epoch_s = _epoch_seconds(facts)
        return 1.05 if epoch_s is None else gain_from(min(0.5, _START_S / epoch_s))


def _epoch_seconds(facts: Facts) -> float | None:
    """The seconds of an epoch in which no step waits for data; None if its length is not known."""
    loader, profile = facts.workload.loader, facts.profile
    if loader is None or loader.length is None or profile is None:
        return None
    return loader.length * profile.step_ms * (1 - profile.share(Phase.DATA_WAIT)) / 1e3
