"""Captured steps beside plain loops, on a graph that records operators in place of a CUDA graph."""

import copy

import pytest
import torch
from graph_stand_in import RecordedGraph
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedStep
from advisor.step.optimizer import use_class
from advisor.step.step import TrainStep

STEPS = 14


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        # No bias before the normalisation: its gradient is rounding alone, which Adam would blow up to full steps.
        self.first, self.norm, self.last = nn.Linear(6, width, bias=False), nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.scale = 1.0

    def forward(self, x):
        return self.scale * self.last(torch.relu(self.norm(self.first(x))))


def net():
    torch.manual_seed(0)
    return Net()


def batches(count=STEPS, size=5):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=generator), torch.arange(size) % 3) for _ in range(count)]


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9, "fused": True, **options})


def adam(parameters, **options):
    return torch.optim.AdamW(parameters, **{"lr": 0.01, "fused": True, **options})


def adagrad(parameters):
    """Its state is made before the first step, with counts that stay on the host."""
    return torch.optim.Adagrad(parameters, lr=0.1)


def small_state(parameters):
    """An AdamW that was made an Adafactor."""
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    use_class(optimizer, "adafactor")
    return optimizer


class Lion(torch.optim.Optimizer):
    """As of a library: its state is made in the first step, and nothing of it is on a device by itself."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in (one for one in group["params"] if one.grad is not None):
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter.add_(mean.lerp(parameter.grad, 0.1).sign_(), alpha=-group["lr"])
                mean.lerp_(parameter.grad, 0.01)


def plain(model, optimizer, loss):
    """A step of a plain loop; ``loss`` is of a model and a batch."""

    def step(batch):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def loaded_state(at, model, optimizer, memory=None):
    """A change in the middle of a loop: the optimizer's state, loaded with zeros."""
    if at == 6:
        saved = copy.deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            for name in ("momentum_buffer", "exp_avg"):
                if name in state:
                    state[name].zero_()
        optimizer.load_state_dict(saved)


def of_model(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def graphed(model, optimizer, loss=of_model, *, of_host=(), **plan):
    step = TrainStep(model, optimizer, loss, StepPlan(mode="train", device="cpu", **plan))
    return GraphedStep(step, RecordedGraph(of_host))


def run(step, data):
    return [step(batch) for batch in data]


def both(change=lambda at, model, optimizer: None, *, make=sgd, data=None, loss=of_model, prepare=lambda model: None):
    """Losses, parameters and buffers of a plain loop and of a captured step, and that step.

    ``change`` is called before each step in either loop.
    """
    found, step = [], None
    for is_captured in (False, True):
        model = net()
        prepare(model)
        optimizer = make(model.parameters())
        step = graphed(model, optimizer, loss) if is_captured else plain(model, optimizer, loss)
        losses = []
        for at, batch in enumerate(data or batches()):
            change(at, model, optimizer)
            losses.append(step(batch).item())
        found.append((losses, copy.deepcopy(model.state_dict())))
    return found, step


def agree(found):
    (losses, state), (others, other_state) = found
    assert others == pytest.approx(losses, rel=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(other_state[name], value, rtol=1e-4, atol=1e-6)
