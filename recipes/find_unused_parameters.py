"""Looking for unused parameters

What it does: With `true`, DistributedDataParallel searches the graph of every step for parameters without gradient.

Why it helps: `false` saves that search. Many loops copied the setting from a model that needed it.

When it does not: A model needs the search if some of its parameters get no gradient in some step. Without the search,
the next step fails and names them.

Numerics: exact: the same gradients reach the optimizer.

References: PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
"""

from advisor.recipe import Facts, ParallelRecipe, Proposal, Skip


class FindUnusedParameters(ParallelRecipe):
    key = "parallel.find_unused_parameters"

    def candidates(self, facts: Facts) -> Proposal:
        return Skip("it is off already, and only a model with unused parameters needs it")
