"""Recipes of the input pipeline and the batch on a GPU: the same numbers, copied while the step before computes."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Inspected, Mode, Outcome, Profile, TrialKind
from advisor.runner.trials import Runner
from advisor.step.device_loader import DeviceLoader, loop_loader

pytestmark = pytest.mark.gpu
AHEAD = {"data.device_prefetch": True, "data.pin_memory": True}


def plan(**changes):
    return StepPlan(Mode.TRAIN, "cuda:0", **{"device_prefetch": True, **changes})


def numbers(count=23, width=4):
    return TensorDataset(torch.arange(float(count * width)).view(count, width), torch.arange(count))


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_arrives_whole_and_in_order(pin, workers):
    loader = DataLoader(numbers(), batch_size=4, pin_memory=pin, num_workers=workers)
    ahead = loop_loader(loader, plan())
    for _ in range(2):
        batches = list(ahead)
        assert len(batches) == len(loader) == len(ahead)
        assert all(tensor.is_cuda for batch in batches for tensor in batch)
        assert torch.cat([labels for _, labels in batches]).tolist() == list(range(23))
        assert torch.equal(torch.cat([inputs for inputs, _ in batches]).cpu(), numbers().tensors[0])
        assert len(batches[-1][1]) == 3


def test_memory_of_an_earlier_batch_is_not_overwritten_while_a_step_reads_it():
    """Each step waits on the GPU before it reads, so that the copies run ahead of it as far as they can."""
    dataset = TensorDataset(torch.arange(40.0).repeat_interleave(2**18).view(40, -1))
    sums = []
    for (batch,) in loop_loader(DataLoader(dataset, batch_size=1, pin_memory=True), plan()):
        torch.cuda._sleep(5_000_000)
        sums.append(batch.double().mean())
        del batch
    assert torch.stack(sums).tolist() == [float(index) for index in range(40)]


def test_the_next_batch_is_copied_while_the_step_computes():
    copied = []

    def move(batch):
        moved = batch[0].to("cuda", non_blocking=True)
        copied.append(torch.cuda.Event())
        copied[-1].record()
        return moved

    loader = DataLoader(TensorDataset(torch.zeros(4, 2**20)), batch_size=1, pin_memory=True)
    ahead = DeviceLoader(loader, torch.device("cuda:0"), move, True)
    list(ahead)  # allocating may wait for the GPU: from here on the memory is there
    copied.clear()
    batches = iter(ahead)
    ends = []
    for _ in range(2):
        next(batches)
        torch.cuda._sleep(4_000_000_000)  # a step of two seconds or so
        ends.append(torch.cuda.Event())
        ends[-1].record()
    assert not ends[0].query()  # the host did not wait for the first step to hand out the second batch
    ends[0].synchronize()
    time.sleep(0.2)
    assert len(copied) == 3
    assert copied[2].query()  # the third batch is there
    assert not ends[1].query()  # while the second step is under way
    torch.cuda.synchronize()


TARGET = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import v2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3)
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        scale = torch.ones(32).to(images.device)
        return self.head(self.conv(images).relu().mean((2, 3)) * scale)

def build():
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)])
    loader = DataLoader(FakeData(256, (3, 64, 64), transform=transform), batch_size=32, num_workers=4)
    model = Net()
    return model, loader, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())
"""


def test_trials_of_the_recipes(trial):
    Runner.prepare()
    runner, catalog = Runner(), load_catalog()

    def run(settings, **changes):
        times = {"measure_s": 0.3, "warmup_limit_s": 1.0}
        return trial(TARGET, runner=runner, device="auto", settings=settings, **times, **changes)

    baseline, inspected = run({}, kind=TrialKind.BASELINE)
    assert baseline.measured, baseline.reason
    _, messages = run({}, kind=TrialKind.PROFILE)
    facts = next(message.workload for message in inspected if isinstance(message, Inspected))
    profile = next(message for message in messages if isinstance(message, Profile))
    assert facts.loader.movable_transforms == ("ToDtype", "Normalize")
    assert profile.host_made_tensors == 1
    assert facts.optimizer.state_bytes >= 8 * facts.parameters
    for settings in (
        AHEAD,
        {"data.transforms_on_device": True},
        {"data.transforms_on_device": True, **AHEAD},
        {"step.create_on_device": True},
        {"data.prefetch_factor": 8, "data.persistent_workers": True},
    ):
        assert catalog.conflict(settings) is None
        result, _ = run(settings)
        assert result.outcome is Outcome.MEASURED, (settings, result.reason)
        assert result.losses == pytest.approx(baseline.losses, rel=1e-3), settings
    accumulated, _ = run({"step.accumulate": 2})
    assert accumulated.losses[0] == pytest.approx(baseline.losses[0], rel=1e-3)
    too_large, _ = run({"data.batch_size": 256})
    assert too_large.measured
    assert too_large.batch_size == 256
