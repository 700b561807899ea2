"""Loops with a step of the user's own, run plain and captured, on a graph that records operators."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from graph_stand_in import RecordedGraph
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.graphed_own_step import GraphedOwnStep
from advisor.step.step import OwnStep

STEPS = 12


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), **{"lr": 0.05, "momentum": 0.9, "fused": True, **options})


def adam(module, **options):
    return torch.optim.Adam(module.parameters(), **{"lr": 0.01, "fused": True, **options})


def batches(count=STEPS, size=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 8, generator=generator) for _ in range(count)]


def net(seed=0, out=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, out))


def captured_step(function, model, **plan):
    own = OwnStep(function, model, StepPlan(mode=plan.pop("mode", "train"), device="cpu", **plan))
    return GraphedOwnStep(own, RecordedGraph())


@dataclass
class Loop:
    """A step with what it works with; ``rest`` is for what a test changes between steps."""

    step: object
    modules: list
    optimizers: list = field(default_factory=list)
    rest: object = None


def run(make, *, captures, data=None, change=lambda at, loop: None):
    """Losses, final states and the loop; ``change`` is called before each step."""
    loop = make()
    step = captured_step(loop.step, nn.ModuleList(loop.modules)) if captures else loop.step
    losses = []
    for at, batch in enumerate(data or batches()):
        change(at, loop)
        losses.append(number_of(step(batch)))
    states = [copy.deepcopy(one.state_dict()) for one in loop.modules]
    return losses, states, loop, step


def number_of(result):
    loss = result["loss"] if isinstance(result, dict) else result
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def agree(make, **options):
    """The captured step, after it was found to compute what the plain one does."""
    losses, states, _, _ = run(make, captures=False, **options)
    others, other_states, _, step = run(make, captures=True, **options)
    assert others == pytest.approx(losses, rel=1e-4)
    for state, other in zip(states, other_states, strict=True):
        for name, value in state.items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)
    return step


def counts(step):
    return step.graph.captures, step.graph.replays


class Trainer:
    """A step that is a method, with an average of its weights and a loss that it keeps."""

    def __init__(self):
        self.model = net()
        self.average = net(2)
        self.optimizer = adam(self.model)
        self.weight = 1.0
        self.epoch = 0  # read by nothing in a step
        self.history = []
        self.last_loss = None

    def train_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
        self.last_loss = loss.detach()
        return loss

    def loss_of(self, batch):
        return self.weight * self.model(batch).square().mean()


def trainer():
    made = Trainer()
    return Loop(made.train_step, [made.model, made.average], [made.optimizer], made)
