"""Reading the loss on the host

What it does: Compares three loops: one calls `loss.item()` after each step (to log or sum the loss), one leaves the
loss on the device, and one adds it up there (`loss_sum += loss.detach()`).

Why it helps: The host launches the next step while the GPU computes the present one. `item()` makes the host wait until
the GPU has finished, and then the GPU waits for the next launch.

When it does not: Little is lost if the host waits for another reason, or if launching a step takes far less time than
computing it. A loop that reads the loss every hundredth step has the gain already.

Numerics: exact: only the reading of the loss changes. Keep a long sum of half-precision losses in float32.

References: PyTorch Performance Tuning Guide. PyTorch documentation, CUDA semantics, Asynchronous execution.
"""

from advisor.recipe import CUDA, TRAINING, Bottleneck, Recipe


class LossSync(Recipe):
    key = "loop.loss_item"
    codes = {
        "never": "# after a step: nothing; log loss.item() every hundredth step\n",
        "every_step": "loss_value = loss.item()  # after each step; the host waits here\n",
        "accumulated": "loss_sum += loss.detach()  # after each step; loss_sum.item() after the epoch\n",
    }
    plan_field = "loss_item"
    modes = TRAINING
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    inside_step = True
    habit = True
    # tests/gpu/RESULTS.md: 1.00x on an encoder; a host-bound step becomes slower
    gains = {"every_step": 0.99, "accumulated": 1.0}
