"""Broadcasting buffers in each step

What it does
------------
With `true`, DistributedDataParallel sends the first rank's buffers, such as the running statistics of batch norms, to
all others before every forward pass. With `false` it does not.

Why it helps
------------
One message less at the beginning of each step, where nothing hides it.

When it does not
----------------
A model without buffers sends none. Without it the running statistics of the ranks differ: save and evaluate the first
rank's, which are the same as with it.

Numerics
--------
exact for training and for the first rank's buffers, which are those that are saved.

References
----------
PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe
from advisor.records import Facts, Proposal, Skip


class BroadcastBuffers(ParallelRecipe):
    key = "parallel.broadcast_buffers"
    default = True
    gain = 1.01

    def values_for(self, facts: Facts) -> Proposal:
        if not facts.workload.has("batch_norm"):
            return Skip("the model has no batch norms, whose buffers would be sent in each step")
        return [False]
