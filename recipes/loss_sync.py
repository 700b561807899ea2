"""Reading the loss on the host

What it does
------------
Calls `loss.item()` after each step, as loops do that log or sum the loss, and compares that with a loop that
leaves the loss on the device, and with one that adds it up there (`loss_sum += loss.detach()`) for reading it
now and then.

Why it helps
------------
The host normally runs ahead: while the GPU computes one step, the host launches the next. `item()` makes it wait
until the GPU has done everything so far, and the GPU then waits in turn until the host has launched again. Adding
up on the device costs one small kernel and no wait.

When it does not
----------------
When something else makes the host wait at every step, or when the host launches a step in far less time than the
GPU takes for it, little is lost. A loop that reads the loss every hundredth step, or not at all, has the gain
already: this row prices the habit. There is nothing to wait for on the CPU.

Numerics
--------
exact: only the reading of the loss changes. A sum on the device has the loss's own type, so long sums of half
precision losses belong into float32.

References
----------
PyTorch Performance Tuning Guide, Avoid unnecessary CPU-GPU synchronization. PyTorch documentation, CUDA
semantics, Asynchronous execution.
"""

from advisor.recipe import CUDA, TRAINING, Recipe
from advisor.records import Bottleneck, Facts, Proposal, Value

_STEP = """\
optimizer.zero_grad(set_to_none=True)
loss = loss_fn(model(inputs), targets)
loss.backward()
optimizer.step()
"""
_CODE: dict[Value, str] = {
    "never": f"{_STEP}# log loss.item() every hundredth step, not here\n",
    "every_step": f"{_STEP}loss_value = loss.item()  # the host waits here, at every step\n",
    "accumulated": (
        "loss_sum = torch.zeros((), device=device)  # before the loop\n\n"
        f"{_STEP}loss_sum += loss.detach()  # loss_sum.item() after the epoch\n"
    ),
}


class LossSync(Recipe):
    key = "loop.loss_item"
    values = tuple(_CODE)
    plan_field = "loss_item"
    modes = TRAINING
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    inside_step = True
    habit = True
    # Expected speed-up: Both 1.00x on an encoder; a host-bound step waits (tests/gpu/RESULTS.md).
    gains = {"every_step": 0.99, "accumulated": 1.0}
    codes = _CODE

    def candidates(self, facts: Facts) -> Proposal:
        return ["every_step", "accumulated"]
