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
    """A device is ``meta`` here."""
    with TrafficCounter() as counter:
        work(torch.empty(4, 3, device="meta"))
    assert counter.host_made == copies


CONSTANT = torch.ones(3)


class WhereItIs(nn.Module):
    """Reports the device on which a tensor is created by default; ``meta`` stands for deferred initialisation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, device="meta"))
        self.seen = []

    def forward(self, inputs):
        self.seen.append(torch.zeros(1).device.type)
        return inputs * self.weight


def by_plan(mode, *, create=True):
    plan, model = StepPlan(mode, "meta", create_on_device=create), WhereItIs()
    if mode is Mode.INFER:
        return model, InferStep(model, plan).forward
    return model, TrainStep(model, sgd(model), nn.functional.mse_loss, plan).forward


def by_file(mode):
    module, model = module_of(CATALOG, {"step.create_on_device": True}, mode), WhereItIs()
    if mode is Mode.INFER:
        return model, lambda batch: module.infer_step(model)(batch[0])
    return model, module.train_step(model, sgd(model), nn.functional.mse_loss)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)


@pytest.mark.parametrize("way", [by_plan, by_file])
@pytest.mark.parametrize("mode", list(Mode))
def test_the_step_creates_on_its_device(mode, way):
    model, step = way(mode)
    step((torch.ones(2, device="meta"), torch.ones(2, device="meta")))
    assert model.seen == ["meta"]
    assert torch.zeros(1).device.type == "cpu"


def test_the_step_creates_on_the_host_unless_the_plan_says_so():
    model, step = by_plan(Mode.INFER, create=False)
    step((torch.ones(2, device="meta"),))
    assert model.seen == ["cpu"]
