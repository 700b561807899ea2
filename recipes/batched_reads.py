"""Batches read at once

What it does
------------
Has a DataLoader read each array of a dataset once a batch, with the numbers of all its samples, in place of once a
sample (`__getitems__`). For a `TensorDataset`, a dataset of your own whose `__getitem__` only indexes the tensors or
NumPy arrays that it holds, and a `Subset` of these. The dataset, the sampler, the order and the loader's other
options stay.

Why it helps
------------
Reading 512 samples one by one makes a thousand small tensors and stacks them again, in Python: often a few
milliseconds, which is more than the step of a small model takes on a GPU. One indexing copies the same numbers at the
speed of memory.

When it does not
----------------
Where the data is read from files, decoded or transformed for each sample, nothing can be read at once. Workers that are
fast enough hide the time that samples take, though they need cores and a copy of each batch.

Numerics
--------
exact: the same samples in the same order, and the same numbers.

References
----------
PyTorch documentation, torch.utils.data, Loading Batched and Non-Batched Data; Dataset, `__getitems__`. PyTorch
documentation, torch.utils.data.TensorDataset.
"""

from advisor.recipe import Components, gain_from
from advisor.recipe.loader_recipe import LoaderRecipe, little_time_in
from advisor.records import Facts, LoaderFacts, Phase, Proposal, Skip, Value

# The share of the time of reading samples that reading them at once saves: at least half, for large samples, which
# are bound by copying.
_SAVED = 0.7


class BatchedReads(LoaderRecipe):
    key = "data.batched_reads"
    usual = frozenset({True})
    spares = frozenset({"num_workers"})
    order = -1  # it looks at the dataset as its owner made it

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if loader.batched_reads_problem:
            return Skip(loader.batched_reads_problem)
        return little_time_in(facts, self.phases) or [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        return max(1.02, gain_from(_SAVED * facts.profile.share(Phase.DATA_WAIT))) if facts.profile else 1.2

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.recipe.rebuild import refusing
        from advisor.step.batched_reads import with_batched_reads

        if value and workload.has_loader:
            with refusing():
                workload.data = with_batched_reads(workload.data)

    def code(self, value: Value) -> str:
        from advisor.step import source

        if not value:
            return "# the dataset is read sample by sample\n"
        return f"{source('batched_reads')}\n\nloader = adjusted(with_batched_reads, loader)\n"
