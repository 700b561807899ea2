"""Activations that write over their input, where nothing reads it again."""

import contextlib

import pytest
import torch
import torchvision
from compiled_models import both_ways, by_apply, gradients_of, twin
from facts import LINEAR, cpu_facts
from proposals import CATALOG, proposed, reason
from test_recipes_pointwise import Optional
from torch import nn

from advisor.records import Mode, Numerics
from advisor.step.inplace import activations_in_place, inplace_sites
from advisor.step.norm_pairs import views_of
from advisor.step.pointwise import fusable_chains
from advisor.step.tracing import CannotTraceError, trace

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Norms(nn.Module):
    """A small U-Net: skip connections read an activation again, activations come after norms, sums and a view."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.deep, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.first, self.second, self.third, self.last = nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.ReLU()
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        skip = self.first(self.down(images))
        deep = self.second(self.norm(self.deep(nn.functional.max_pool2d(skip, 2))))
        deep = nn.functional.interpolate(deep, scale_factor=2)
        x = self.third(self.up(torch.cat([skip, deep], 1)))
        x = self.last(x.mean((2, 3)) + 0.1)
        return self.head(x)


class MustCopy(nn.Module):
    """Activations whose input is read again, saved for the backward pass, a view, or the caller's own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.read_again, self.of_saved, self.of_view, self.of_input = nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.negative = nn.LeakyReLU(-0.2)
        self.smooth, self.of_written = nn.SiLU(), nn.ReLU()

    def forward(self, x):
        given = self.of_input(x)
        y = self.a(given)
        y = y + self.read_again(y)
        y = self.of_saved(torch.exp(-y.square()))
        z = same = self.b(y)
        z += 1
        y = self.of_written(z) + same
        y = self.of_view(self.b(y).view(-1, 2, 4)).flatten(1)
        return self.negative(self.a(y)) + self.smooth(self.b(y))


def plain_resnet18():
    model = torchvision.models.resnet18(num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


@both_ways
@pytest.mark.parametrize(
    ("make", "size", "count"), [(plain_resnet18, 32, 9), (Norms, 8, 4)], ids=["ResNet-18", "U-Net"]
)
def test_activations_in_place_change_no_bit(effect, make, size, count):
    model, reference = twin(make)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    changed = effect("inplace_activations", True, model)
    assert changed is model
    assert len(activations_in_place(model)) == count
    output, gradients = gradients_of(model.train(), images)
    expected, expected_gradients = gradients_of(reference.train(), images)
    assert torch.equal(output, expected)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(found, wanted)


@both_ways
def test_activations_whose_input_is_needed_are_left_alone(effect):
    model, reference = twin(MustCopy)
    effect("inplace_activations", True, model)
    assert activations_in_place(model) == []
    inputs = torch.randn(3, 8)
    assert torch.equal(gradients_of(model, inputs)[0], gradients_of(reference, inputs)[0])


def test_inference_takes_smooth_activations_too():
    model, reference = twin(MustCopy)
    by_apply("inplace_activations", True, model, Mode.INFER)
    assert activations_in_place(model) == [model.smooth]
    with torch.no_grad():
        assert torch.equal(model(torch.ones(2, 8)), reference(torch.ones(2, 8)))


def test_one_module_that_is_called_twice_has_to_be_safe_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            y = self.act(self.a(x))
            z = self.a(y)
            return self.act(z) * z

    model = Twice()
    assert inplace_sites(model) == []


@both_ways
def test_activations_in_place_can_be_measured_off(effect):
    model, reference = twin(lambda: torchvision.models.resnet18(num_classes=4))
    effect("inplace_activations", False, model)
    assert activations_in_place(model) == []
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(gradients_of(model, images)[0], gradients_of(reference.train(), images)[0])


def test_candidates_of_activations_in_place():
    assert proposed("inplace_activations", cpu_facts(inplace_activations=9)) == [True]
    on = {"model.inplace_activations": True}
    assert proposed("inplace_activations", cpu_facts(current=on)) == [False]
    assert "no activation module" in reason("inplace_activations", cpu_facts(families=LINEAR))
    problem = "has forward hooks, which a trace would lose"
    assert reason("inplace_activations", cpu_facts(tracing_problem=problem)) == f"the model {problem}"
    assert CATALOG["inplace_activations"].numerics is Numerics.EXACT


def test_what_cannot_be_traced_is_refused_in_words():
    with pytest.raises(CannotTraceError, match="optional arguments"):
        by_apply("inplace_activations", True, Optional())


class InitialisedByItsFirstBatch(nn.Module):
    """Learns its offset from the first batch, and remembers in a buffer that it has."""

    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()
        self.register_buffer("offset", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        if self.calls == 0:
            self.offset.copy_(x.mean(0))
        self.calls.add_(1)
        return self.act(self.layer(x - self.offset))


def test_a_trace_writes_to_no_buffer_and_says_that_it_would():
    model = InitialisedByItsFirstBatch()
    with pytest.raises(CannotTraceError, match="keeps values in its forward"):
        trace(model)
    assert model.calls == 0


class Averaging(nn.Module):
    """Replaces a buffer by what it computes from others."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x):
        self.total = self.total / 2
        return x - self.total


def test_a_trace_replaces_no_buffer():
    model = Averaging()
    with pytest.raises(CannotTraceError, match="keeps values in its forward"):
        trace(model)
    assert torch.equal(model.total, torch.ones(4))


class Merging(nn.Module):
    """A LoRA as in loralib: its ``train`` adds the learned matrices to the frozen weight, and takes them off again."""

    def __init__(self):
        super().__init__()
        self.layer, self.down, self.up = nn.Linear(4, 4), nn.Parameter(torch.ones(1, 4)), nn.Parameter(torch.ones(4, 1))
        self.act, self.is_merged = nn.ReLU(), False

    def train(self, mode=True):
        super().train(mode)
        if self.is_merged is mode:
            self.layer.weight.data += (-1 if mode else 1) * self.up @ self.down
            self.is_merged = not mode
        return self

    def forward(self, x):
        y = self.layer(x)
        return self.act(y if self.is_merged else y + x @ self.down.T @ self.up.T) * 2


@pytest.mark.parametrize("look", [inplace_sites, fusable_chains, lambda model: views_of(model, (True, False))])
def test_looking_at_a_model_does_not_call_a_train_of_its_own(look):
    model = Merging()
    before = model.layer.weight.clone()
    with contextlib.suppress(CannotTraceError):
        look(model)
    assert model.training
    assert not model.is_merged
    assert torch.equal(model.layer.weight, before)
