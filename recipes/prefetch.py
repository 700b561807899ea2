"""Batches prepared ahead by each worker

What it does: Sets how many batches each DataLoader worker prepares ahead (`prefetch_factor`). PyTorch's default is 2.

Why it helps: If some batches take much longer to prepare than others, a longer queue bridges the slow ones.

When it does not: Workers that are too slow on average stay too slow: use more workers. Each batch in the queue takes
host memory, and also pinned memory if the loader pins. Without workers there is no queue.

Numerics: exact: the same batches in the same order.

References: PyTorch documentation, torch.utils.data.DataLoader, prefetch_factor. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import Facts, LoaderFacts, LoaderRecipe, Proposal, WholeNumbers


class Prefetch(LoaderRecipe):
    key = "data.prefetch_factor"
    values = WholeNumbers(1, such_as=(2, 4))
    ladder = True
    without_workers = "only workers prepare batches ahead, and the loader has none: num_workers tries some first"
    gains = {4: 1.05, 8: 1.06}  # tests/gpu/RESULTS.md: 1.35x and 1.38x if batches come in bursts, else 0.96x to 0.99x

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        return [4, 8]
