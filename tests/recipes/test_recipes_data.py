"""Batches on their way to the device: copied ahead, without blocking, from pinned memory."""

import copy

import pytest
import torch
from facts import gpu_facts, loader_facts, profile_facts
from loaders import LOADERS, Numbers, every_loader, first_tensor, samples_of
from proposals import proposed, reason
from torch import nn
from torch.utils.data import DataLoader

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.prefetch import loop_loader
from advisor.step.tuning import Tuning
from advisor.trial.measurement.draws import Feed, probe_batches

# --- batches on the device ------------------------------------------------------------------------------------


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
    model = nn.Linear(1, 1)
    tuning = Tuning({"data.device_prefetch": True})
    _, same = tuning.prepare(model, LOADERS["map-style"]())
    assert isinstance(same, DataLoader)  # on the CPU there is nothing to copy ahead


def test_copying_ahead_is_tried_where_copies_show():
    assert proposed("gpu_prefetch", gpu_facts(loader=loader_facts(), profile=profile_facts())) == [True]


def test_copies_that_do_not_block_need_pinned_memory():
    assert proposed("non_blocking", gpu_facts(loader=loader_facts(pin_memory=True))) == [True]
    assert "pin_memory tries both" in reason("non_blocking", gpu_facts(loader=loader_facts()))
    assert "DataLoader" in reason("non_blocking", gpu_facts())


@pytest.mark.parametrize("recipe_id", ["num_workers", "persistent_workers", "prefetch", "pin_memory", "batch_size"])
def test_no_option_is_tried_of_a_loader_that_cannot_be_copied(recipe_id):
    loader = loader_facts(num_workers=2, copy_problem="Mine reads from an iterator")
    facts = gpu_facts(loader=loader, current={"data.num_workers": 0})
    assert reason(recipe_id, facts) == "Mine reads from an iterator"


def test_an_iterable_dataset_gets_the_workers_that_it_is_made_for():
    waits = profile_facts(step_ms=100.0, phases={"data wait": 90.0, "forward": 10.0})

    def values(**changes):
        return proposed("num_workers", gpu_facts(loader=loader_facts(iterable_dataset=True, **changes), profile=waits))

    assert values() == [1]
    assert values(divides_samples=True)[:2] == [1, 2]
