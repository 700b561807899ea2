"""Batches read at once

What it does
------------
Reads each tensor of a `TensorDataset`, or of a `Subset` of one, once a batch instead of once a sample. Sampler, order
and other options stay. For a dataset of your own, write `__getitems__(indices)`: PyTorch's loaders call it.

Why it helps
------------
Reading 512 samples one by one makes a thousand small tensors and stacks them again in Python, often for milliseconds.
One indexing copies the same numbers at the speed of memory.

When it does not
------------
Data that is read from files, decoded or transformed for each sample cannot be read at once. Workers that are fast
enough hide the time, at the price of cores and a copy of each batch. The loader gets a dataset of its own over the same
tensors: it does not see other tensors that you put into yours later.

Numerics
------------
exact: the same samples in the same order, and the same numbers.

References
------------
PyTorch documentation, torch.utils.data, Loading Batched and Non-Batched Data; Dataset, `__getitems__`; TensorDataset.
"""

from typing import Any

from advisor.errors import RefusedError
from advisor.recipe import Components, code_of, gain_from
from advisor.recipe.loader_recipe import Expression, LoaderRecipe, little_time_in
from advisor.records import Facts, LoaderFacts, Phase, Proposal, Skip, Value

# Share of the time of reading samples that reading them at once saves. Unitless; at least half, for large samples.
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

    def options(self, value: Value) -> dict[str, Any]:
        if not value:
            return {}
        return {"dataset": Expression("reads_batches(loader.dataset)"), "collate_fn": Expression("as_it_is")}

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.batched_reads import as_it_is, reads_batches
        from advisor.step.loader import one_by_one_problem, rebuild

        if value and workload.has_loader:
            if problem := one_by_one_problem(workload.data):
                raise RefusedError(problem)
            dataset = reads_batches(workload.data.dataset)
            workload.data = rebuild(workload.data, dataset=dataset, collate_fn=as_it_is)

    def code(self, value: Value) -> str:
        if not value:
            return "# the dataset is read sample by sample\n"
        return code_of("batched_reads", super().code(value))
