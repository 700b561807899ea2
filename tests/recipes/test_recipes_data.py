"""Loaders: their workers, and batches on their way to the device, copied ahead from pinned memory."""

import copy

import pytest
import torch
from loaders import LOADERS, Numbers, applied, every_loader, first_tensor, samples_of
from proposals import CATALOG
from torch import nn
from torch.utils.data import DataLoader

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.device_loader import loop_loader
from advisor.step.tuning import Tuning
from advisor.trial.measurement.draws import Feed, probe_batches


def plan_of(**changes):
    return StepPlan(Mode.TRAIN, "cpu", **changes)


def test_a_loader_is_wrapped_only_when_the_plan_says_so():
    loader, batch = LOADERS["map-style"](), torch.ones(3)
    assert loop_loader(loader, plan_of()) is loader
    assert loop_loader(batch, plan_of(device_prefetch=True)) is batch
    wrapped = loop_loader(loader, plan_of(device_prefetch=True))
    assert (len(wrapped), wrapped.batch_size, wrapped.dataset) == (3, 4, loader.dataset)
    assert wrapped.num_workers == 1
    assert copy.copy(wrapped).batch_size == 4
    with pytest.raises(AttributeError):
        _ = wrapped.no_such_thing


@every_loader
def test_a_wrapped_loader_yields_the_same_batches_every_epoch(kind):
    loader = loop_loader(LOADERS[kind](), plan_of(device_prefetch=True))
    for _ in range(2):
        assert samples_of(loader) == [float(number) for number in range(10)]


def test_what_is_left_for_the_device_is_done_there_and_in_the_probe():
    plan = plan_of(device_transform=lambda batch: [batch[0] + 100, batch[1]])
    loader = DataLoader(Numbers(), batch_size=4)
    assert samples_of(loop_loader(loader, plan))[:2] == [100.0, 101.0]
    assert first_tensor(probe_batches(loader, 0, plan)[0])[0] == 100.0
    feed = Feed(loop_loader(loader, plan))
    assert not feed.resident
    assert [len(feed.next()[0]) for _ in range(4)] == [4, 4, 2, 4]


def test_prepare_returns_a_loader_that_the_loop_can_use_as_before():
    _, same = Tuning({"data.device_prefetch": True}).prepare(nn.Linear(1, 1), LOADERS["map-style"]())
    assert isinstance(same, DataLoader)  # on the CPU there is nothing to copy ahead


def test_workers_get_their_options():
    assert applied("prefetch", 5, LOADERS["map-style"]()).prefetch_factor == 5
    assert applied("persistent_workers", True, LOADERS["map-style"]()).persistent_workers is True
    without = DataLoader(Numbers(), batch_size=4)
    assert applied("prefetch", 4, without) is applied("persistent_workers", True, without) is without
    assert "persistent_workers=True" in CATALOG["persistent_workers"].code(True)
    assert CATALOG["num_workers"].code(8) == "loader = torch.utils.data.DataLoader(..., num_workers=8)\n"


@pytest.mark.parametrize("stay", [True, False])
def test_more_workers_live_on_between_epochs_as_the_present_ones_do(stay):
    changed = applied("num_workers", 2, DataLoader(Numbers(), num_workers=1, persistent_workers=stay))
    assert (changed.num_workers, changed.persistent_workers) == (2, stay)


@pytest.mark.process
@every_loader
def test_every_kind_of_loader_yields_the_same_samples(kind):
    loader = LOADERS[kind]()
    for recipe_id, value in {"prefetch": 3, "persistent_workers": True}.items():
        loader = applied(recipe_id, value, loader)
    assert loader.num_workers == 1
    assert samples_of(loader) == [float(number) for number in range(10)]
