"""Workers that live on between epochs

What it does: Keeps the DataLoader's workers alive when an epoch ends (`persistent_workers=True`); no new ones start.

Why it helps: Starting a worker takes tens of milliseconds, more if it imports packages or opens files. After a start
the queue of batches is empty, so the first steps of every epoch wait. Short epochs lose this time often.

When it does not: Only the starts of epochs gain, which cannot be measured in epochs of minutes. Workers, and the caches
of their datasets, stay in memory. Workers do not see changes of the dataset between two epochs (a curriculum, a new
image size, another subset, `set_epoch`).

Numerics: exact: the same batches. Random augmentation in the workers continues its stream, and the loader draws one
number less in each epoch, so later samples and orders differ as between two seeds.

References: PyTorch documentation, torch.utils.data.DataLoader. PyTorch Performance Tuning Guide.
"""

from advisor.figures.formatting import format_seconds
from advisor.recipe import Facts, LoaderFacts, LoaderRecipe, Phase, Proposal, Skip

# A trial measures for a few seconds, so it does not reach the end of a longer epoch.
_LONGEST_EPOCH_S = 10.0


class PersistentWorkers(LoaderRecipe):
    key = "data.persistent_workers"
    usual = frozenset({True})
    gain = 1.05  # tests/gpu/RESULTS.md: 1.16x and 1.69x with epochs of less than a second, no gain with long ones
    without_workers = "the loader has no workers yet: num_workers tries some first"

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if loader.length is not None and facts.profile is not None:
            # The length of an epoch if no step waited for data.
            epoch_s = loader.length * facts.profile.step_ms * (1 - facts.profile.share(Phase.DATA_WAIT)) / 1e3
            if epoch_s > _LONGEST_EPOCH_S:
                return Skip(f"starting workers takes a small part of an epoch of about {format_seconds(epoch_s)}")
        return [True]
