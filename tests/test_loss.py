from __future__ import annotations

import copy
import functools
import itertools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.loss import LossError, default_loss, describe_loss, main_output
from advisor.step.losses import of_two, takes_model
from advisor.step.step import TrainStep


def of_model(model, batch): ...
def of_net(net, data): ...
def of_batch(whatever, batch): ...
def of_annotated(m: nn.Module, b): ...
def of_subclass(m: nn.Sequential, b): ...
def of_output(output, target): ...
def of_unknown_annotation(output: NoSuchClass, target): ...  # noqa: F821
def of_logits(logits, batch): ...
def of_open(a, b, weight): ...
def of_nothing(): ...


class Criterion:
    def __call__(self, model, inputs): ...


class OpenCriterion:
    def __call__(self, first, second): ...


class ModelLoss(nn.Module):
    def forward(self, model, batch): ...


@pytest.mark.parametrize(
    ("loss", "takes"),
    [
        (of_model, True),
        (of_net, True),
        (of_batch, None),
        (of_annotated, True),
        (of_subclass, True),
        (lambda model, b: None, True),
        (Criterion(), True),
        (functools.partial(of_model), True),
        (of_output, False),
        (of_unknown_annotation, False),
        (of_logits, False),
        (functools.partial(of_open, weight=2.0), None),
        (of_nothing, None),
        (lambda a, b: None, None),
        (lambda *args: None, None),
        (OpenCriterion(), None),
        (functional.cross_entropy, False),
        (nn.CrossEntropyLoss(), False),
        (ModelLoss(), False),  # a module is called with output and target
        (print, None),
        (max, None),  # without a signature
    ],
)
def test_the_two_forms_are_told_apart(loss, takes):
    assert takes_model(loss) is takes


# --- a form that the signature leaves open ----------------------------------------------------------------------


class Normed(nn.Module):
    """Has all that a try could change: statistics, dropout, gradients."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        random.random()
        return self.layers(x)


class OpenModelLoss:
    def __call__(self, first, second):
        return functional.cross_entropy(first(second[0]), second[1])


def of_both(a, b, call):
    return call(a, b)


def scaled(a, b, scale):
    return scale * functional.cross_entropy(a, b)


def anything(*args):
    first, second = args
    return functional.cross_entropy(first(second[0]), second[1])


def backward_inside(m, b):
    loss = functional.cross_entropy(m(b[0]), b[1])
    loss.backward(retain_graph=True)
    return loss


def named_batch(whatever, batch):
    return functional.cross_entropy(whatever(batch[0]), batch[1])


OF_MODEL = [
    named_batch,
    lambda m, b: functional.cross_entropy(m(b[0]), b[1]),
    OpenModelLoss(),
    anything,
    backward_inside,
]
OF_OUTPUT = [
    lambda o, t: 1.0 * functional.cross_entropy(o, t),
    functools.partial(scaled, scale=2.0),
    lambda *args: 1.0 * functional.cross_entropy(*args),
    functools.partial(torch._C._nn.cross_entropy_loss, reduction=1),  # has no signature
]


def stepping(loss):
    torch.manual_seed(0)
    model = Normed()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, StepPlan(mode=Mode.TRAIN, device="cpu"))


BATCH = torch.arange(24.0).reshape(4, 6), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("loss", "form"),
    [(loss, "loss(model, batch)") for loss in OF_MODEL] + [(loss, "loss(output, target)") for loss in OF_OUTPUT],
)
def test_a_try_finds_the_form_and_changes_nothing(loss, form):
    step = stepping(loss)
    before = copy.deepcopy(step.model.state_dict())
    generators = torch.get_rng_state(), random.getstate()
    assert form in step.settle_loss(BATCH)
    assert step.settle_loss(BATCH) == ""  # it is known now
    assert all(torch.equal(value, before[name]) for name, value in step.model.state_dict().items())
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert step.model.training


class Remembering(nn.Module):
    """Keeps what it saw in an attribute, in a buffer that it replaces, and draws with NumPy."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.hidden, self.calls = None, 0
        self.register_buffer("memory", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        output = numpy.random.uniform(0.5, 1) * self.layer(x) + self.memory
        self.memory = self.hidden = output.detach().mean(0)
        return output


def test_a_try_undoes_what_a_model_remembers():
    torch.manual_seed(0)
    model = Remembering()
    step = TrainStep(model, torch.optim.SGD(model.parameters()), OF_MODEL[0], StepPlan(mode=Mode.TRAIN, device="cpu"))
    numpy.random.seed(0)
    before = numpy.random.get_state()[1].copy()
    assert step.settle_loss(BATCH)
    assert (model.hidden, model.calls) == (None, 0)
    assert torch.equal(model.memory, torch.zeros(3))
    assert (numpy.random.get_state()[1] == before).all()


def drawn_from(values):
    def told(m, b):
        return next(values) * nn.functional.mse_loss(m(b[0]), b[1])

    return told


@pytest.mark.parametrize("kind", [itertools.count, lambda start: (value for value in range(start, 9))])
def test_a_loss_that_takes_values_from_an_iterator_is_not_tried(kind):
    values, model = kind(1), nn.Linear(3, 2)
    batch = torch.ones(4, 3), torch.zeros(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.0), drawn_from(values), StepPlan("train", "cpu"))
    expected = nn.functional.mse_loss(model(batch[0]), batch[1]).item()
    assert [step(batch).item() for _ in range(3)] == pytest.approx([expected, 2 * expected, 3 * expected])


def test_where_only_a_try_could_tell_the_form_names_are_asked_for():
    values, model = itertools.count(1), nn.Linear(3, 2)
    weighted = drawn_from(values)
    optimizer, plan = torch.optim.SGD(model.parameters(), 0.0), StepPlan("train", "cpu")
    step = TrainStep(model, optimizer, lambda a, b: 1.0 * weighted(a, b), plan)
    with pytest.raises(LossError, match="takes values from a count, and a try would use one up"):
        step((torch.ones(4, 3), torch.zeros(4, 2)))
    assert next(values) == 1


def test_steps_are_the_same_whether_names_or_a_try_told_the_form():
    def named(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    losses = {}
    for loss in (named, OF_MODEL[0], OF_OUTPUT[0]):
        step = stepping(loss)
        losses[loss] = [step(BATCH).item() for _ in range(3)]
    assert losses[named] == losses[OF_MODEL[0]] == losses[OF_OUTPUT[0]]


def test_a_loss_compiled_with_the_model_is_compiled_in_the_form_that_was_found(monkeypatch):
    compiled = []
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: compiled.append(call) or call)
    step = stepping(OF_MODEL[0])
    plain = stepping(OF_MODEL[0])(BATCH).item()
    whole = TrainStep(
        step.model,
        step.optimizer,
        OF_MODEL[0],
        StepPlan(mode=Mode.TRAIN, device="cpu", compile_scope="with_loss", compile_mode="default"),
    )
    assert compiled == []
    torch.manual_seed(0)
    Normed()
    assert whole(BATCH).item() == plain
    assert compiled == [OF_MODEL[0]]


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (lambda a, b: 1.0, "it returns float, not a tensor"),
        (lambda a, b: torch.ones(3), "it returns 3 numbers, not one"),
        (lambda a, b: torch.ones(()), "does not depend on the model's parameters"),
        (of_nothing, "takes 0 positional arguments"),
    ],
)
def test_a_loss_that_works_in_no_form_says_what_is_wrong_and_what_to_do(loss, complaint):
    with pytest.raises(LossError) as caught:
        stepping(loss).settle_loss(BATCH)
    assert caught.value.message.count(complaint) == 2
    assert "loss(output, target):" in caught.value.message
    assert "loss(model, batch):" in caught.value.message
    assert "\n" not in caught.value.message
    assert "def loss(model, batch)" in caught.value.hint


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: (loss, {"accuracy": 0.5}),
        lambda loss: (loss, torch.ones(())),
        lambda loss: (loss, 2 * loss),
        lambda loss: [loss, torch.ones(())],
        lambda loss: (torch.ones(4, 3), loss),
        lambda loss: {"loss": loss, "logits": torch.ones(4, 3)},
        lambda loss: SimpleNamespace(loss=loss),
    ],
    ids=[
        "with metrics",
        "with a number",
        "with its parts",
        "with a number in a list",
        "behind the output",
        "in a mapping",
        "in an object",
    ],
)
def test_the_loss_is_found_in_what_a_loss_function_returns(wrap):
    def named(model, batch):
        return wrap(functional.cross_entropy(model(batch[0]), batch[1]))

    def plain(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    assert [stepping(named)(BATCH) for _ in range(2)] == [stepping(plain)(BATCH) for _ in range(2)]
    assert stepping(functools.partial(of_both, call=named)).settle_loss(BATCH)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (lambda loss: loss.expand(4), "returns 4 numbers, not one"),
        (lambda loss: {"a": loss, "b": loss}, "returns dict with a, b, and none of them is its `loss`"),
        (
            lambda loss: (torch.ones(2), loss, loss),
            "returns a tuple with several numbers, of which any could be the loss",
        ),
        (lambda loss: [loss, 2 * loss], "returns a list with several numbers, of which any could be the loss"),
        (lambda loss: loss.item(), "returns float, not a tensor"),
    ],
)
def test_a_loss_function_that_returns_no_loss_says_so(value, complaint):
    def named(model, batch):
        return value(functional.cross_entropy(model(batch[0]), batch[1]))

    with pytest.raises(LossError, match="Return one number to minimise") as caught:
        stepping(named)(BATCH)
    assert complaint in str(caught.value)


def test_memory_that_runs_out_says_nothing_about_the_form():
    def hungry(a, b):
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        stepping(hungry).settle_loss(BATCH)


def test_losses_as_a_person_reads_them():
    def of_three(output, boxes, labels):
        return output.sum()

    assert describe_loss(of_two(of_three)) == "of_three"
    assert describe_loss(None) == "none"
    assert describe_loss(nn.CrossEntropyLoss()) == "CrossEntropyLoss"
    assert describe_loss(of_output) == "of_output"
    assert describe_loss(Criterion()) == "Criterion"
    assert describe_loss(functools.partial(of_output)) == "partial"


# --- the loss of a workload that brings none ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("wrap", [lambda loss: {"loss": loss}, lambda loss: SimpleNamespace(loss=loss)])
def test_the_models_own_loss(wrap):
    loss = torch.tensor(3.0)
    assert default_loss(wrap(loss), None) is loss


def test_whole_numbers_are_classes():
    scores, labels = torch.randn(4, 10), torch.randint(10, (4,))
    assert default_loss(scores, labels) == functional.cross_entropy(scores, labels)


def test_classes_of_pixels():
    scores, labels = torch.randn(2, 5, 6, 7), torch.randint(5, (2, 6, 7))
    assert default_loss({"out": scores, "aux": scores + 1}, labels) == functional.cross_entropy(scores, labels)


def test_classes_of_tokens_have_their_scores_last():
    scores, labels = torch.randn(2, 6, 50), torch.randint(50, (2, 6))
    expected = functional.cross_entropy(scores.reshape(12, 50), labels.reshape(12))
    assert default_loss(scores, labels) == pytest.approx(expected.item())


def test_targets_of_the_outputs_shape_are_a_regression():
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert default_loss(output, target) == functional.mse_loss(output, target)


@pytest.mark.parametrize("target", [None, torch.randn(7), "text", torch.randint(3, (7, 1))])
def test_else_the_mean_square_of_the_outputs(target):
    output = torch.randn(4, 3)
    assert default_loss(output, target) == pytest.approx(output.square().mean().item())


def test_the_main_output_is_the_first_floating_point_tensor():
    scores = torch.randn(2)
    assert main_output((torch.tensor([1]), [scores, torch.randn(2)])) is scores


def test_an_output_without_numbers_says_so():
    with pytest.raises(TypeError, match="returned str, which holds no floating-point tensor"):
        main_output("text")
