"""Compressed gradients

What it does
------------
Sends gradients as `bf16` or `fp16`, half the bytes, or (`powersgd`) as two thin matrices whose product is near the
gradient; PowerSGD begins after ten steps.

Why it helps
------------
Half the bytes take half the time on a slow link: PCIe, Ethernet, several machines.

When it does not
----------------
Where communication is hidden behind the backward pass, or the link is NVLink, there is nothing to gain, and converting
costs a little. Gradients in half precision lose small values; with fp16 large ones overflow.

Numerics
--------
close for bf16 and fp16: sums of gradients are rounded; changed for powersgd.

References
----------
PyTorch documentation, DDP Communication Hooks. Vogels et al., PowerSGD, NeurIPS 2019.
"""

from advisor.recipe.parallel_recipe import ParallelRecipe
from advisor.records import Mode, Numerics, Value

_REGISTERED = """\
# on a model in DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model.register_comm_hook(None, default_hooks.{name}_compress_hook)
"""
_CODE: dict[Value, str] = {
    "none": "# gradients are sent as they are\n",
    "bf16": _REGISTERED.format(name="bf16"),
    "fp16": _REGISTERED.format(name="fp16"),
    "powersgd": """\
# on a model in DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=10)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
""",
}


class CommHook(ParallelRecipe):
    key = "parallel.comm_hook"
    values = ("none", "bf16", "fp16", "powersgd")
    gain = 1.02
    codes = _CODE

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        if value == self.default:
            return Numerics.EXACT
        return Numerics.CHANGED if value == "powersgd" else Numerics.CLOSE

    def rounding(self, value: Value) -> float:
        return {"bf16": 2.0**-8, "fp16": 2.0**-11}.get(str(value), 0.0)
