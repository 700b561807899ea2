"""Blocks that are gathered ahead

What it does
------------
Sets the number of blocks whose parameters fully_shard gathers while the present block computes, in either pass. With 0
PyTorch gathers the next block of the forward pass as soon as the host gets there.

Why it helps
------------
Where the host is late, gathering begins late and the GPU waits for it. Computing hides what is gathered ahead.

When it does not
------------
Each block that is gathered ahead is whole in memory. Where the host is ahead of the GPU, nothing is gained.

Numerics
------------
exact: the same kernels run in the same order.

References
------------
PyTorch documentation, FSDPModule.set_modules_to_forward_prefetch and set_modules_to_backward_prefetch.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe
from advisor.records import Value, Values


class ShardPrefetch(ParallelRecipe):
    key = "parallel.shard_prefetch"
    values = (0, 1, 2)
    strategies = frozenset({"fully_shard"})
    gain = 1.02  # estimated: it orders the trials only
    codes = {0: "# PyTorch decides when the next block is gathered\n"}
    shown = """\
blocks = list(model.children())
for place, block in enumerate(blocks):
    block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + {value}])
    block.set_modules_to_backward_prefetch(blocks[max(0, place - {value}) : place][::-1])
"""

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value != self.default and settings.get("parallel.shard_unit") == "model":
            return "parallel.shard_unit model gathers all at once, so there is no block to gather ahead"
        return super().conflict(value, settings)
