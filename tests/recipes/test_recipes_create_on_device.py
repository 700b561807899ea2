"""Tensors that a step makes on the host: counted, and created on its device instead."""

import pytest
import torch
from exported_module import module_of
from proposals import CATALOG
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import InferStep, TrainStep
from advisor.trial.profile.profiler import TrafficCounter


def made(work):
    """How many tensors ``work`` makes on the host and sends to a device; ``meta`` stands in for it."""
    counter = TrafficCounter()
    with counter:
        work(torch.empty(4, 3, device="meta"))
    return counter.host_made


@pytest.mark.parametrize(
    ("work", "copies"),
    [
        (lambda x: x + torch.arange(3).to(x.device), 1),
        (lambda x: x * (torch.ones(3) * 2).to(x.device) + torch.zeros(4, 1).to(x.device), 2),
        (lambda x: x + torch.arange(3, device=x.device), 0),
        (lambda x: x * 2, 0),
        (lambda x: x.copy_(torch.randn(4, 3)), 1),
        (lambda x: torch.ones(3).sum(), 0),
        (lambda x: x + CONSTANT.to(x.device), 0),
    ],
)
def test_copies_of_tensors_that_the_step_made_are_counted(work, copies):
    assert made(work) == copies


CONSTANT = torch.ones(3)


class WhereItIs(nn.Module):
    """Says on which device a tensor without one is created; ``meta`` as in deferred initialisation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, device="meta"))
        self.seen = []

    def forward(self, inputs):
        self.seen.append(torch.zeros(1).device.type)
        return inputs * self.weight


def created_in_step(plan, batch):
    model = WhereItIs()
    if plan.mode is Mode.TRAIN:
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, plan)
    else:
        step = InferStep(model, plan)
    step.forward(batch)
    return model.seen


@pytest.mark.parametrize("mode", list(Mode))
def test_the_step_creates_on_its_device_when_the_plan_says_so(mode):
    batch = (torch.ones(2, device="meta"), torch.ones(2, device="meta"))
    assert created_in_step(StepPlan(mode, "meta", create_on_device=True), batch) == ["meta"]
    assert created_in_step(StepPlan(mode, "meta"), batch) == ["cpu"]
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_exported_step_creates_on_its_device(mode):
    module = module_of(CATALOG, {"step.create_on_device": True}, mode)
    model = WhereItIs()
    batch = torch.ones(2, device="meta")
    if mode == "infer":
        module.infer_step(model)(batch)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        module.train_step(model, optimizer, nn.functional.mse_loss)((batch, batch))
    assert model.seen == ["meta"]
