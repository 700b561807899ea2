"""Half precision of gathered parameters

What it does
------------
With `bfloat16`, fully_shard gathers the parameters in bfloat16 and computes in it. Each rank keeps its shard in
float32, and gradients are averaged in float32.

Why it helps
------------
Half the bytes to gather and to keep. Without it parameters are sent in float32, under autocast too.

When it does not
------------
Where computing hides the gathering, sending less gains nothing.

Numerics
------------
close: layers compute in bfloat16, those too that autocast would leave in float32.

References
------------
PyTorch documentation, torch.distributed.fsdp.MixedPrecisionPolicy. Zhao et al., PyTorch FSDP, VLDB 2023.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe


class ShardPrecision(ParallelRecipe):
    key = "parallel.shard_precision"
    values = ("none", "bfloat16")
    strategies = frozenset({"fully_shard"})
    gain = 1.1  # estimated: it orders the trials only
    roundings = {"bfloat16": 2.0**-8}
    codes = {"none": "# parameters are gathered in their own type\n"}
    shown = (
        "from torch.distributed.fsdp import MixedPrecisionPolicy\n\n"
        "half = MixedPrecisionPolicy(param_dtype=torch.{value}, reduce_dtype=torch.float32)\n"
        "fully_shard(model, mp_policy=half)  # and so for each block\n"
    )
