"""What prepare gives back on a real GPU: optimizers that are fused or captured, and checkpoints that go both ways."""

import warnings

import pytest
import torch
from exported_module import plain_losses
from saved import through_disk
from torch import nn

from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SETTINGS = {
    "fused": {"optimizer.implementation": "fused"},
    "captured": {"step.cuda_graph": True},
    "fused and captured": {"optimizer.implementation": "fused", "step.cuda_graph": True},
    "channels last": {"optimizer.implementation": "fused", "model.memory_format": "channels_last"},
}


def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 4)).to(CUDA)


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 3, 8, 8, generator=generator).to(CUDA), torch.randint(4, (8,), generator=generator).to(CUDA))
        for _ in range(count)
    ]


def parts():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


def assert_same(model, other):
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("started", [False, True], ids=["at the start", "after some steps"])
def test_a_run_goes_on_from_a_plain_checkpoint_and_back(settings, started):
    expected, optimizer, schedule = parts()
    plain_losses(expected, optimizer, batches(4), schedule=schedule)
    saved = through_disk([expected.state_dict(), optimizer.state_dict(), schedule.state_dict()])
    plain_losses(expected, optimizer, batches(12, seed=2), schedule=schedule)

    tuning = Tuning(settings)
    tuned = tuning.prepare(*parts())
    model, optimizer, schedule = tuned
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    if started:  # a captured step is recorded by now, and has to go on with what is loaded
        for batch in batches(6, seed=3):
            step(batch)
    for part, state in zip(tuned, saved, strict=True):
        part.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler")
        for batch in batches(8, seed=2):
            step(batch)
            schedule.step()
    assert all(group.get("fused") is True for group in optimizer.param_groups) is (
        "optimizer.implementation" in settings
    )
    assert all(group["capturable"] for group in optimizer.param_groups) is ("step.cuda_graph" in settings)
    assert isinstance(optimizer.param_groups[0]["lr"], float)

    state = optimizer.state_dict()
    assert {group["fused"] for group in state["param_groups"]} == {None}
    assert {group["capturable"] for group in state["param_groups"]} == {False}
    assert state["state"][0]["step"].device.type == "cpu"
    saved = through_disk([model.state_dict(), state, schedule.state_dict()])
    again, optimizer, schedule = parts()
    for part, loaded in zip((again, optimizer, schedule), saved, strict=True):
        part.load_state_dict(loaded)
    plain_losses(again, optimizer, batches(12, seed=2)[8:], schedule=schedule)
    assert_same(again, expected)


def test_a_scaler_goes_with_a_fused_optimizer_through_a_checkpoint():
    settings = {"optimizer.implementation": "fused", "precision.autocast": "float16"}
    model, optimizer, _ = parts()
    tuning = Tuning(settings)
    model, optimizer = tuning.prepare(model, optimizer)
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    for batch in batches(3):
        step(batch)
    saved = through_disk([model.state_dict(), optimizer.state_dict(), step.scaler.state_dict()])
    other, second, _ = parts()
    other, second = tuning.prepare(other, second)
    again = tuning.train_step(other, second, nn.CrossEntropyLoss())
    for part, state in zip((other, second, again.scaler), saved, strict=True):
        part.load_state_dict(state)
    for batch in batches(3, seed=2):
        torch.testing.assert_close(again(batch), step(batch), rtol=1e-2, atol=1e-3)
    assert again.scaler.get_scale() == step.scaler.get_scale()
    assert_same(other, model)
