"""Captured steps that copy tensors of the host to the GPU, against plain loops."""

import pytest
import torch
from torch import nn

from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
RATES = torch.linspace(1e-4, 0.02, 50)
KEPT = torch.cumprod(1 - RATES, 0)
ORDER = torch.randperm(6, generator=torch.Generator().manual_seed(3))


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.scale = torch.linspace(0.5, 1.5, 6)

    def forward(self, inputs):
        return self.linear(inputs) * self.scale.to(inputs.device)


def denoise(model, batch):
    clean = batch[0].cuda()
    kept = KEPT.to(clean.device)[batch[1].cuda()][:, None]
    noise = torch.cos(100 * clean)
    mixed = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    return nn.functional.mse_loss(model(mixed), noise)


def derived(model, batch):
    weight = (1 - KEPT).sqrt().cuda()[batch[1].cuda()]
    return (weight * model(batch[0].cuda()).square().mean(1)).mean()


def picked(model, batch):
    return model(batch[0].cuda())[:, ORDER].square().mean(0)[:3].sum()


def trained(loss, settings, changes):
    torch.manual_seed(0)
    model = Scales().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tuning = Tuning(settings)
    model, optimizer = tuning.prepare(model, optimizer)
    step = tuning.train_step(model, optimizer, loss)
    generator = torch.Generator().manual_seed(1)
    losses, before = [], KEPT.clone()
    try:
        for number in range(12):
            if changes and number == 8:
                KEPT.mul_(0.5)
            batch = torch.randn(4, 6, generator=generator), torch.randint(50, (4,), generator=generator)
            losses.append(step(batch).item())
    finally:
        KEPT.copy_(before)
    return losses, step


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("loss", [denoise, derived, picked])
def test_a_step_that_copies_a_table_of_the_host_is_captured_and_follows_it(loss, compiled, fresh_compiler):
    settings = {"step.cuda_graph": True}
    if compiled:
        settings |= {"compile.mode": "default", "compile.scope": "with_loss"}
    expected, _ = trained(loss, {}, changes=loss is not picked)
    losses, step = trained(loss, settings, changes=loss is not picked)
    assert step.captured
    assert losses == pytest.approx(expected, rel=1e-3)
