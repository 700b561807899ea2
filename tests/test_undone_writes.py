"""Tries and traces leave every tensor as it was, such as a teacher that follows the weights in each forward pass.

Random generators, too: a step after a try draws what a plain loop draws.
"""

import copy
import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.step import TrainStep
from advisor.step.tracing import CannotTraceError, trace
from advisor.step.tuning import Tuning
from advisor.step.undone import undone


def replace_data(teacher, student):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.data = old.data * 0.5 + new.data * 0.5


def write_data(teacher, student):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.data.mul_(0.5).add_(new.data, alpha=0.5)


@torch.no_grad()
def write_in_place(teacher, student):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.lerp_(new, 0.5)


@torch.no_grad()
def write_all_at_once(teacher, student):
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.5)


@torch.no_grad()
def write_a_part(teacher, student):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old[:1] = new[:1]
        old.flatten()[1:].zero_()


@torch.no_grad()
def write_results(teacher, student):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        torch.add(old, new, out=old)


UPDATES = [replace_data, write_data, write_in_place, write_all_at_once, write_a_part, write_results]


class Distilled(nn.Module):
    """A student and a teacher; the forward pass moves the teacher, as momentum encoders do."""

    def __init__(self, update):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.teacher = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False)
        self.update = update

    def forward(self, x):
        self.update(self.teacher, self.student)
        return self.student(x) + self.teacher(x)


def tensors_and_memory(model):
    return copy.deepcopy(model.state_dict()), [parameter.data_ptr() for parameter in model.parameters()]


def is_as_before(model, before):
    values, places = before
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name]), name


@pytest.mark.parametrize("update", UPDATES)
def test_a_try_leaves_what_the_forward_pass_writes_as_it_was(update):
    model = Distilled(update)
    before = tensors_and_memory(model)
    with undone(model):
        model(torch.ones(2, 4)).sum().backward()
        assert not torch.equal(model.teacher[0].weight, before[0]["teacher.0.weight"])
    is_as_before(model, before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("update", UPDATES)
def test_a_trace_leaves_what_the_forward_pass_writes_as_it_was_and_is_refused(update):
    model = Distilled(update)
    before = tensors_and_memory(model)
    with pytest.raises(CannotTraceError, match="which a trace would freeze"):
        trace(model)
    is_as_before(model, before)


@pytest.mark.parametrize("update", [replace_data, write_data])
@pytest.mark.parametrize("key", ["model.inplace_activations", "compile.pointwise_only"])
@pytest.mark.filterwarnings("ignore:.*is left out")
def test_settings_that_trace_a_model_do_not_move_its_teacher(update, key):
    model = Distilled(update)
    before = tensors_and_memory(model)
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.1)
    model, optimizer = Tuning({key: True}).prepare(model, optimizer)
    is_as_before(model, before)


def test_finding_the_form_of_a_loss_leaves_a_tensor_of_its_own_as_it_was():
    queue, place = torch.zeros(6, 3), torch.zeros(1, dtype=torch.long)

    def loss(first, second):  # whether it takes the model or its output, these names leave open
        output = first(second[0]) if isinstance(first, nn.Module) else first
        with torch.no_grad():
            queue[place : place + 2] = output[:2]
            place.add_(2)
        return output.square().mean()

    model = nn.Linear(4, 3)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, StepPlan(mode="train", device="cpu"))
    step.settle_loss((torch.ones(4, 4), torch.arange(4) % 3))
    assert not queue.any()
    assert place.item() == 0


# --- random generators ----------------------------------------------------------------------------------------

DRAWS = {
    "Python's": lambda: random.random,
    "of Python": lambda: random.Random(3).random,
    "an object's": lambda: functools.partial(random.Random(3).betavariate, 1, 1),
    "of NumPy": lambda: np.random.default_rng(3).random,
    "of NumPy's older kind": lambda: np.random.RandomState(3).rand,
    "of PyTorch": lambda: functools.partial(torch.rand, (), generator=torch.Generator().manual_seed(3)),
}


class Skipping(nn.Module):
    """Uses the input of an activation, and the result of a convolution before its norm, at random."""

    def __init__(self, draw):
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)
        self.linear, self.activation, self.draw = nn.Linear(4, 4), nn.ReLU(), draw

    def forward(self, x):
        convolved = self.convolution(x)
        hidden = self.linear(self.norm(convolved))
        shown = self.activation(hidden)
        return shown if self.draw() < 0.5 else shown + hidden + convolved


@pytest.mark.parametrize("name", DRAWS)
def test_a_try_leaves_random_generators_as_they_were(name):
    random.seed(1)
    draw = DRAWS[name]()
    model = Skipping(draw)
    with undone(model):
        wanted = [float(draw()) for _ in range(3)]
    with undone(nn.Linear(1, 1), lambda output, target: draw()):
        assert [float(draw()) for _ in range(3)] == wanted
    assert [float(draw()) for _ in range(3)] == wanted


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("key", ["model.inplace_activations", "model.conv_bias_before_norm"])
def test_what_a_trace_finds_is_not_used_where_random_numbers_decide(key, name):
    """The trace would see one of the ways that the forward pass takes."""
    random.seed(2)
    model = Skipping(DRAWS[name]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    value = key == "model.inplace_activations"
    with pytest.warns(UserWarning, match=f"{key}: {str(value).lower()} is left out: .*draws random numbers in its"):
        Tuning({key: value}).prepare(model, optimizer)
    assert not model.activation.inplace
    assert model.convolution.bias is not None


def test_an_activation_keeps_its_input_where_a_switch_of_the_users_would_need_it():
    """As a skip connection that a loop turns on later."""

    class Switched(nn.Module):
        def __init__(self, *, residual):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.relu, self.other = nn.ReLU(), nn.ReLU()
            self.residual = residual

        def forward(self, x):
            hidden = self.first(x)
            shown = self.relu(hidden)
            return self.other(self.last(shown + hidden if self.residual else shown))

    for residual in (False, True):
        model = Switched(residual=residual)
        Tuning({"model.inplace_activations": True}).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert (model.relu.inplace, model.other.inplace, model.residual) == (False, True, residual)


def test_a_model_that_takes_values_from_an_iterator_is_not_tried():
    class Weighted(nn.Linear):
        def forward(self, x):
            return next(self.weights) * super().forward(x)

    model = Weighted(3, 2)
    model.weights = itertools.count(1)
    plan = StepPlan("train", "cpu", autocast="bfloat16")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.0), nn.functional.cross_entropy, plan)
    step((torch.ones(4, 3), torch.zeros(4, dtype=torch.long)))
    assert next(model.weights) == 2
