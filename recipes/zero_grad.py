"""Clearing of gradients

What it does: Compares three ways to clear gradients between steps: `optimizer.zero_grad()`, which drops them (the
default); `set_to_none=False`, which fills them with zeros; and `param.grad = None` by hand for each parameter.

Why it helps: Dropping gradients writes no memory, and the next backward pass stores its gradients instead of adding to
zeros. Zeros cost one write and one extra read of every gradient.

When it does not: PyTorch drops gradients since version 2.0, so plain `zero_grad()` has the gain already. In a long
step, even filling with zeros can be too short to measure.

Numerics: exact if every trained parameter gets a gradient in every step. If a parameter gets none in a step, the
optimizer skips it after dropped gradients; after zeros, weight decay and momentum still move it.

References: PyTorch documentation, torch.optim.Optimizer.zero_grad. PyTorch Performance Tuning Guide. NVIDIA ECCV 2020.
"""

from advisor.recipe import TRAINING, Bottleneck, Recipe


class ZeroGrad(Recipe):
    key = "step.zero_grad"
    codes = {
        "none": "optimizer.zero_grad(set_to_none=True)\n",
        "zeros": "optimizer.zero_grad(set_to_none=False)\n",
        "manual": "for parameter in model.parameters():\n    parameter.grad = None\n",
    }
    plan_field = "zero_grad"
    modes = TRAINING
    attacks = frozenset({Bottleneck.MEMORY})
    inside_step = True
    saves_memory = True
    habit = True
    gains = {"zeros": 0.97, "manual": 1.0}  # tests/gpu/RESULTS.md: zeros 0.98x, by hand 1.00x
