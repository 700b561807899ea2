"""Tensors that a step makes on the host for its device, with the device "meta" in the place of a GPU."""

import random
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.capturing import HostReads
from advisor.step.graph import GraphedStep
from advisor.step.graphed_own_step import GraphedOwnStep
from advisor.step.made_on_host import MadeOnHost, refuses_the_host
from advisor.step.step import InferStep
from advisor.step.observed_step import OTHER_NUMBERS
from advisor.step.step import OwnStep

META = torch.device("meta")
OUTSIDE = torch.ones(3)
ARRAY = np.ones(3, dtype=np.float32)


def batch():
    return torch.ones(2, 3, device=META)


def write_at_places(x):
    x = x.clone()
    x[:, [0, 1]] = torch.tensor([7.0, 8.0]).to(x.device)
    return x


def under_a_default_device(x):
    with x.device:
        return x * torch.tensor([1.0, 2.0, 3.0])


def filled(x):
    table = torch.empty(3)
    table[:2] = 0.5
    table[2].fill_(2.0)
    return x * table.to(x.device)


def bounded(x, bound: int):
    return torch.where(x > 0, torch.tensor(bound - 1).type_as(x), x)


with warnings.catch_warnings(action="ignore"):  # of its end, in later versions
    SCRIPTED = torch.jit.script(bounded)


STEPS = {
    "a number on the device at once": lambda x: x * torch.tensor([1.0, 2.0, 3.0], device=x.device),
    "on the device by default": under_a_default_device,
    "a number of another type": lambda x: torch.where(x > 0, torch.tensor(5).type_as(x), x),
    "a number in TorchScript": lambda x: SCRIPTED(x, 6),
    "a number among others": lambda x: torch.where(x > 0, torch.tensor(5.0), x),
    "new_tensor": lambda x: x + x.new_tensor([0.5, 0.25, 0.0]),
    "a number of NumPy's": lambda x: x * torch.tensor([ARRAY[0]] * 3, device=x.device),
    "a range": lambda x: x * torch.arange(3).to(x.device),
    "computed on the host": lambda x: x * torch.ones(3, 3).triu().sum(0).to(x.device, torch.float16),
    "filled": filled,
    "copied into": lambda x: torch.empty_like(x).copy_(torch.arange(3)),
    "an index": lambda x: x[:, torch.tensor([0, 2])],
    "a list for an index": lambda x: x[:, [0, 2]],
    "written at places": write_at_places,
}


def served(step):
    """Look at a step, run it again, and return what the device read from the host in that second run."""
    made = MadeOnHost(META)
    with made.looking():
        expected = step(batch())
    with HostReads(META) as reads, made.serving():
        assert step(batch()).shape == expected.shape
    return made, reads.sources


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_makes_on_the_host_comes_from_the_device_in_a_capture(name):
    made, sources = served(STEPS[name])
    assert made.held
    assert all(held.is_meta for held in made.held.values())
    assert not sources


def test_a_leaf_made_on_the_device_stays_one():
    leaves = []

    def step(x):
        leaves.append(torch.tensor([1.0, 2.0, 3.0], device=x.device, requires_grad=True))
        return x * leaves[-1]

    served(step)
    assert all(leaf.requires_grad and leaf.is_leaf and leaf.is_meta for leaf in leaves)


def written_from_outside(x):
    table = torch.zeros(3)
    table[:2].copy_(OUTSIDE[:2])
    return x * table.to(x.device)


def computed_into(x):
    table = torch.zeros(3)
    torch.add(OUTSIDE, 1, out=table)
    return x * table.to(x.device)


def written_by_an_array(x):
    table = torch.zeros(3)
    table.numpy()[:] = ARRAY
    return x * table.to(x.device)


def another_memory(x):
    table = torch.zeros(3)
    table.set_(OUTSIDE)
    return x * table.to(x.device)


REFUSED = {
    "a tensor from outside": lambda x: x * OUTSIDE.to(x.device),
    "computed from one": lambda x: x * (OUTSIDE + torch.ones(3)).to(x.device),
    "written from one": written_from_outside,
    "computed into a tensor": computed_into,
    "the memory of one": another_memory,
    "a number of one": lambda x: x * torch.tensor([OUTSIDE[0].item()] * 3, device=x.device),
    "a list of one's numbers": lambda x: x * torch.tensor(OUTSIDE.tolist(), device=x.device),
    "random numbers": lambda x: x * torch.rand(3).to(x.device),
    "random numbers in place": lambda x: x * torch.empty(3).uniform_().to(x.device),
    "the memory of an array": lambda x: x * torch.from_numpy(ARRAY).to(x.device),
    "the numbers of an array": lambda x: x * torch.tensor(ARRAY, device=x.device),
    "of two arrays": lambda x: x * torch.tensor(np.stack([ARRAY, ARRAY])).to(x.device)[0],
    "written by an array": written_by_an_array,
    "a tensor again": lambda x: x * torch.as_tensor(OUTSIDE, device=x.device),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_comes_from_elsewhere_is_not_held(name):
    made = MadeOnHost(META)
    with made.looking():
        REFUSED[name](batch())
    assert not made.held


@pytest.mark.parametrize("name", ["a tensor from outside", "random numbers", "written by an array"])
def test_what_comes_from_elsewhere_is_read_from_the_host_though_a_tensor_with_its_values_is_held(name):
    def step(x):
        ones = x * torch.ones(3).to(x.device)
        return ones + REFUSED[name](x)

    _, sources = served(step)
    assert len(sources) == 1


def test_functions_of_torchscript_are_as_before_after_a_look():
    before = torch.jit.ScriptFunction.__call__
    served(lambda x: SCRIPTED(x, 6))
    assert torch.jit.ScriptFunction.__call__ is before
    assert SCRIPTED(torch.ones(2), 6).tolist() == [5.0, 5.0]


def test_another_value_is_copied_from_the_host():
    draw = random.Random(0)
    _, sources = served(lambda x: x * torch.tensor([draw.random()] * 3, device=x.device))
    assert len(sources) == 1


def test_numbers_of_no_dimensions_are_left_to_the_operators():
    made = MadeOnHost(META)
    with made.looking():
        assert (batch() * torch.tensor(0.5)).is_meta
    assert not made.held


class Refusing:
    """A graph whose capture fails as PyTorch's does where a call copies from the host."""

    def __init__(self, message="Cannot copy between CPU and CUDA tensors during CUDA graph capture"):
        self.message, self.captures, self.result = message, 0, None
        self.reads = HostReads(META)  # around all steps, for what runs in the end

    def run(self, step, count):
        """Run steps with this graph."""
        with self.reads:
            for _ in range(count):
                step(batch())

    def warm_up(self, call):
        return call()

    def capture(self, call, generators=()):
        self.captures += 1
        self.reads.sources.clear()
        self.result = call()
        if self.reads.sources:
            raise RuntimeError(self.message)

    def replay(self):
        pass

    def drop(self):
        pass


class Scaled(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) * torch.tensor([1.0, 2.0, 3.0]).to(inputs.device)


class Timed(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) * torch.tensor([time.perf_counter() % 1] * 3).to(inputs.device)


def inferring(model, graph):
    return GraphedStep(InferStep(model, StepPlan(mode="infer", device="meta", cuda_graph=True)), graph)


@pytest.mark.parametrize(
    "message",
    [
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
        "CUDA error: operation not permitted when stream is capturing",
    ],
)
def test_a_capture_that_fails_for_them_is_tried_again(message):
    graph = Refusing(message)
    step = inferring(Scaled(3, 3, device=META), graph)
    graph.run(step, 6)
    assert step.captured
    assert graph.captures == 2


def test_a_capture_that_fails_for_something_else_is_not_tried_again():
    graph = Refusing("out of memory")
    step = inferring(Scaled(3, 3, device=META), graph)
    with pytest.raises(RuntimeError, match="out of memory"):
        graph.run(step, 6)
    assert graph.captures == 1


def test_numbers_that_differ_in_each_step_are_refused_in_a_sentence():
    graph = Refusing()
    step = inferring(Timed(3, 3, device=META), graph)
    with pytest.raises(RuntimeError, match=OTHER_NUMBERS):
        graph.run(step, 6)
    assert not step.captured


def test_numbers_that_the_model_reads_are_followed():
    class Warming(nn.Linear):
        factor = 1.0

        def forward(self, inputs):
            return super().forward(inputs) * torch.tensor([self.factor] * 3).to(inputs.device)

    graph = Refusing()
    model = Warming(3, 3, device=META)
    step = inferring(model, graph)
    graph.run(step, 6)
    before = list(step._made.held)
    model.factor = 2.0
    graph.run(step, 1)
    assert not step.captured
    graph.run(step, 12)
    assert step.captured
    assert before != list(step._made.held)


def watched(function, size=3):
    """A step of the user's own after the steps that are watched, and why it is refused."""
    refusals, model = [], nn.Linear(3, size, device=META)
    plan = StepPlan(mode="infer", device="meta", cuda_graph=True)
    step = GraphedOwnStep(OwnStep(lambda x: function(model(x)), model, plan), Refusing(), refusals.append)
    for _ in range(3):
        step(batch())
    return step, refusals


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_step_of_the_users_own_may_make_them(name):
    step, refusals = watched(STEPS[name])
    assert not refusals
    assert len(step._observed) == 2
    with HostReads(META) as reads, step._made.serving():
        step.own.forward(batch())
    assert not reads.sources


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_step_of_the_users_own_is_refused_with_others(name):
    step, refusals = watched(REFUSED[name])
    assert len(refusals) == 1
    assert not step._observed


@pytest.mark.parametrize("size", [3, 300])
def test_a_step_of_the_users_own_is_put_off_where_its_numbers_differ(size):
    step, _ = watched(lambda x: x * torch.tensor([time.perf_counter() % 1] * size).to(x.device), size)
    assert "each time" in step.patience.reason or step.patience.reason == OTHER_NUMBERS
    assert len(step._observed) < 2


def test_other_faults_are_not_taken_for_a_copy_from_the_host():
    assert refuses_the_host(RuntimeError("CUDA error: operation not permitted when stream is capturing"))
    assert not refuses_the_host(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
