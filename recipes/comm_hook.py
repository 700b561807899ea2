"""Compressed gradients

What it does
------------
Sends gradients as `bf16` or `fp16`: half the bytes.

Why it helps
------------
Half the bytes take half the time on a slow link: PCIe, Ethernet, several machines.

When it does not
------------
Communication that the backward pass hides, or that goes over NVLink, gains nothing, and converting costs a little. Half
precision loses small gradients; in fp16 large ones overflow.

Numerics
------------
close: sums of gradients are rounded.

References
------------
PyTorch documentation, DDP Communication Hooks.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe


class CommHook(ParallelRecipe):
    key = "parallel.comm_hook"
    values = ("none", "bf16", "fp16")
    gain = 1.02
    roundings = {"bf16": 2.0**-8, "fp16": 2.0**-11}
    codes = {"none": "# gradients are sent as they are\n"}
    shown = """\
# on a model in DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model.register_comm_hook(None, default_hooks.{value}_compress_hook)
"""
