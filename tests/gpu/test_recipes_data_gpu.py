"""Recipes of the input pipeline and the batch on a GPU: the same numbers, copied while the step before computes."""

from __future__ import annotations

import time

import pytest
import torch
from tiny_mnist import write_mnist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.datasets import MNIST
from torchvision.transforms import v2

from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Inspected, Mode, Outcome, Profiled, TrialKind
from advisor.runner.trials import Runner
from advisor.step.device_loader import DeviceLoader, loop_loader
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
AHEAD = {"data.device_prefetch": True, "data.pin_memory": True}


def plan(**changes):
    return StepPlan(Mode.TRAIN, "cuda:0", **{"device_prefetch": True, **changes})


def numbers(count=23, width=4):
    return TensorDataset(torch.arange(float(count * width)).view(count, width), torch.arange(count))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).cuda()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


# --- images kept on the device --------------------------------------------------------------------------------


def test_images_kept_on_the_gpu_are_those_of_the_loader_with_the_same_draws(tmp_path):
    write_mnist(tmp_path)
    steps = v2.Compose(
        [v2.ToImage(), v2.RandomCrop(8, padding=2), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    loader = DataLoader(MNIST(tmp_path, transform=steps), batch_size=7, shuffle=True, pin_memory=True, num_workers=1)
    components = Components(net(), None, loader, plan(device_prefetch=False))
    load_catalog()["on_device"].apply(components, True)
    alone = DataLoader(loader.dataset, batch_size=7, shuffle=True)
    found = []
    for one in (alone, components.data):
        torch.manual_seed(3)
        found.append(list(one))
    for (images, labels), (others, same) in zip(*found, strict=True):
        assert others.is_cuda
        assert same.is_cuda
        assert torch.equal(images, others.cpu())
        assert torch.equal(labels, same.cpu())


# --- batches copied ahead -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("pin", [False, True])
def test_the_code_copies_ahead_as_the_setting_does(pin):
    loader = DataLoader(numbers(), batch_size=4, pin_memory=pin)
    names = {"torch": torch, "loader": loader, "device": torch.device("cuda", 0)}
    exec(load_catalog()["gpu_prefetch"].code(True), names)
    by_code, by_setting = list(names["copied_ahead"](loader)), list(loop_loader(loader, plan()))
    assert len(by_code) == len(by_setting) == len(loader)
    for shown, applied in zip(by_code, by_setting, strict=True):
        assert all(tensor.is_cuda for tensor in shown)
        assert all(torch.equal(*pair) for pair in zip(shown, applied, strict=True))


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


def test_what_the_loader_raises_is_raised_while_batches_are_copied_ahead():
    class Broken(Dataset):
        def __getitem__(self, index):
            if index == 3:
                raise KeyError("no third")
            return torch.tensor(index)

        def __len__(self):
            return 5

    seen = []
    batches = iter(loop_loader(DataLoader(Broken(), batch_size=1), plan()))
    with pytest.raises(KeyError, match="no third"):
        seen.extend(batch.item() for batch in batches)
    assert seen == [0, 1]  # the batch before it was ready, and waits for its successor


def test_a_loop_may_end_early_and_begin_again():
    ahead = loop_loader(DataLoader(numbers(), batch_size=4, pin_memory=True), plan())
    for _ in range(3):
        for _, labels in ahead:
            assert labels.tolist() == [0, 1, 2, 3]
            break
    assert len(list(loop_loader(DataLoader(numbers(0), batch_size=4), plan()))) == 0


@pytest.mark.parametrize(
    "settings", [AHEAD, AHEAD | {"step.cuda_graph": True}, AHEAD | {"precision.autocast": "bfloat16"}]
)
def test_training_with_batches_copied_ahead(settings):
    loader = DataLoader(numbers(), batch_size=4)

    def losses(settings):
        tuning = Tuning(settings)
        model = net()
        model, optimizer, batches = tuning.prepare(model, sgd(model), loader)
        step = tuning.train_step(model, optimizer, lambda output, target: output.sum(1).sub(target).square().mean())
        return [step(batch).item() for _ in range(3) for batch in batches]

    without = {key: value for key, value in settings.items() if not key.startswith("data.")}
    assert losses(settings) == pytest.approx(losses(without), rel=1e-5)


# --- a whole trial --------------------------------------------------------------------------------------------

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
    profile = next(message.profile for message in messages if isinstance(message, Profiled))
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
