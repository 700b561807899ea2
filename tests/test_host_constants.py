"""Tensors of the host that a step copies to its device, with the device "meta" in the place of a GPU."""

import pytest
import torch
from torch import nn

from advisor.step.capturing import find_host_constants, places_on_host
from advisor.step.places import value_at
from advisor.step.walk import found_in

META = torch.device("meta")
TABLE = torch.linspace(0.0, 1.0, 8)
ORDER = torch.arange(3).flip(0)
HALF = torch.tensor(0.5)


def copied(model, batch):
    return (model(batch) * TABLE.to(batch.device)[:3]).sum()


def copied_as_a_view(model, batch):
    return (model(batch) * TABLE[None, :3].to(batch.device)).sum()


def picked(model, batch):
    return model(batch)[:, ORDER].sum()


def scaled(model, batch):
    return (model(batch) * HALF).sum()


def on_both(model, batch):
    return (model(batch) * TABLE.to(batch.device)[:3]).sum() * float(TABLE.sum())


def written(model, batch):
    return (model(batch) * TABLE.mul_(0.5).to(batch.device)[:3]).sum()


def derived(model, batch):
    return (model(batch) * TABLE.sqrt().to(batch.device)[:3]).sum()


def in_a_closure():
    table = torch.ones(3)
    return lambda model, batch: (model(batch) * table.to(batch.device)).sum()


def found(loss, model=None):
    model = model or nn.Linear(4, 3, device="meta")
    places = places_on_host(found_in(model, loss).places.values(), META)
    batch = torch.ones(2, 4, device="meta")
    return find_host_constants(model, loss, lambda: loss(model, batch), places, META)


@pytest.mark.parametrize("loss", [copied, copied_as_a_view, derived, picked, in_a_closure()])
def test_what_a_step_copies_to_its_device_is_held_there_while_it_runs(loss):
    constants = found(loss)
    ((place, tensor, copy),) = constants.held
    assert copy.is_meta
    assert value_at(*place) is tensor
    with constants.on_device():
        assert value_at(*place) is copy
    assert value_at(*place) is tensor


@pytest.mark.parametrize("loss", [scaled, on_both, written])
def test_what_a_step_needs_on_the_host_or_writes_to_stays_there(loss):
    before = TABLE.clone()
    assert not found(loss).held
    assert torch.equal(TABLE, before)


def test_an_attribute_that_is_no_buffer_is_held_too():
    class Scales(nn.Linear):
        def __init__(self):
            super().__init__(4, 3, device="meta")
            self.scale = torch.ones(3)

        def forward(self, batch):
            return super().forward(batch) * self.scale.to(batch.device)

    model = Scales()
    constants = found(lambda model, batch: model(batch).sum(), model)
    with constants.on_device():
        assert model.scale.is_meta
    assert not model.scale.is_meta


def test_what_the_step_puts_into_the_place_stays_there():
    constants, other = found(copied), torch.zeros(8)
    before = TABLE
    try:
        with constants.on_device():
            globals()["TABLE"] = other
        assert TABLE is other
    finally:
        globals()["TABLE"] = before


def test_on_the_host_itself_nothing_is_looked_for():
    places = found_in(copied).places.values()
    assert places_on_host(places, META)
    assert not places_on_host(places, torch.device("cpu"))
