"""What scripts in the tests begin with, and the step of a loop that was loaded, under settings."""

from __future__ import annotations

from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

numbers = torch.arange(64.0)[:, None]
loader = DataLoader(TensorDataset(numbers, 2 * numbers), batch_size=8)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
seen = []

"""
# A step that stays whole: no plain loop clips the values of its gradients.
STEP = (
    "loss = (model(x) - y).abs().mean(); optimizer.zero_grad(); loss.backward(); "
    "nn.utils.clip_grad_value_(model.parameters(), 1e9); optimizer.step()"
)


def step_of(loop, settings=None):
    components = loop.components(StepPlan(mode=loop.mode, device="cpu", clip_norm=loop.clip_norm), loop.data)
    apply_settings(load_catalog(), components, {**loop.current, **(settings or {})})
    return make_step(components, loop.loss)


def batches(loop, count):
    """Run some steps of a loop, each on its own batch."""
    step = step_of(loop)
    return [float(step(batch)) for _, batch in zip(range(count), loop.data, strict=False)]
