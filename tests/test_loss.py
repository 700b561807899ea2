from __future__ import annotations

import copy
import functools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.portable.losses import (
    LossError,
    default_loss,
    describe_loss,
    in_float32,
    main_output,
    may_refuse_autocast,
    modules_of_loss,
    takes_model,
    takes_output_and_batch,
    takes_output_only,
    target_name_of,
)
from advisor.portable.plan import StepPlan
from advisor.records import Mode
from advisor.runtime.step import TrainStep


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
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: compiled.append(call) or call)
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


# --- a loss of the output alone -------------------------------------------------------------------------------


class OwnLoss(nn.Module):
    """Computes its loss where it gets labels, as Hugging Face's models and nanoGPT do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        scores = self.linear(x)
        return scores, functional.cross_entropy(scores, labels) if labels is not None else None


LABELLED = torch.randn(8, 4), torch.randint(3, (8,))


@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize("batch", [LABELLED, {"x": LABELLED[0], "labels": LABELLED[1]}], ids=["a tuple", "a mapping"])
def test_a_loss_of_the_output_alone_leaves_the_whole_batch_to_the_model(batch, compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)
    model = OwnLoss()
    expected = model(*LABELLED)[1].item()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode=compiled, compile_scope="with_loss")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda out: out[1], plan)
    assert step(batch).item() == pytest.approx(expected)
    assert step.loss_of_known_form((1, 2)) == 2


@pytest.mark.parametrize("compiled", ["none", "default"])
def test_without_a_loss_the_model_that_makes_its_own_gets_the_target(compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)

    class Smoothed(OwnLoss):
        def forward(self, x, labels=None):
            scores, loss = super().forward(x, labels)
            return scores, None if loss is None else loss + 1

    model = Smoothed()
    expected = model(*LABELLED)[1].item()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode=compiled, compile_scope="with_loss")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), None, plan)
    assert step.loss_is_open
    assert "gets the target too" in step.settle_loss(LABELLED)
    assert not step.loss_is_open
    again = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step.loss_of_known_form, plan)
    assert again(list(LABELLED)).item() == pytest.approx(expected)


def test_the_named_losses_of_a_detector_are_added_up():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, images, targets=None):
            if targets is None:
                raise ValueError("targets should not be none when in training mode")
            scores = self.linear(torch.stack(images))
            boxes = sum(target["boxes"].mean() for target in targets)
            return {"classes": scores.square().mean(), "boxes": boxes * scores.mean(), "found": torch.tensor(7.0)}

    batch = [torch.ones(4), torch.zeros(4)], [{"boxes": torch.ones(2, 4)}, {"boxes": torch.zeros(1, 4)}]
    model = Detector()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), None, StepPlan(mode=Mode.TRAIN, device="cpu"))
    losses = model(*batch)
    assert "gets the target too" in step.settle_loss(batch)
    assert step(batch).item() == pytest.approx((losses["classes"] + losses["boxes"]).item())


class Conditional(OwnLoss):
    """Its labels are a condition, and not a target."""

    def forward(self, x, labels=None):
        return super().forward(x)[0]


class Divergent(OwnLoss):
    """Returns a number that is part of a loss, with and without labels."""

    def forward(self, x, labels=None):
        scores = super().forward(x)[0]
        return scores, scores.square().mean()


@pytest.mark.parametrize("make", [Conditional, Divergent])
def test_without_a_loss_a_model_that_makes_none_of_the_target_is_held_against_it(make):
    model = make()
    expected = functional.cross_entropy(model.linear(LABELLED[0]), LABELLED[1]).item()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), None, StepPlan(mode=Mode.TRAIN, device="cpu"))
    assert step.settle_loss(LABELLED) == ""
    assert step(LABELLED).item() == pytest.approx(expected)


def test_a_loss_of_the_output_alone_needs_no_second_input_of_the_model():
    model = nn.Linear(4, 3)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda output: output.square().mean(),
        StepPlan(mode=Mode.TRAIN, device="cpu"),
    )
    expected = model(LABELLED[0]).square().mean().item()
    assert step(LABELLED).item() == pytest.approx(expected)


class Scores(dict):
    """Outputs of Hugging Face's models: without labels they hold no loss."""

    loss = property(lambda self: self.get("loss"))


class NamedLoss(OwnLoss):
    def forward(self, x, labels=None):
        scores, loss = super().forward(x, labels)
        return Scores(scores=scores) if loss is None else Scores(scores=scores, loss=loss)


@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize(
    ("loss", "keeps"),
    [
        (lambda output, batch: output.loss, True),
        (lambda output, target: output["loss"], True),
        (lambda a, b: a["loss"] * 1, True),
        (lambda output, target: functional.cross_entropy(output["scores"], target), False),
        (lambda model, batch: model(**batch).loss, False),
    ],
)
def test_labels_are_left_to_the_model_where_the_loss_reads_the_models_own(loss, keeps, compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)
    model, batch = NamedLoss(), {"x": LABELLED[0], "labels": LABELLED[1]}
    expected = model(**batch).loss.item()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode=compiled, compile_scope="with_loss")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, plan)
    assert ("the model gets the labels too" in step.settle_loss(batch)) is keeps
    assert step(batch).item() == pytest.approx(expected)


def refused_by_autocast(output, target):
    """As binary cross-entropy on a GPU; on a CPU PyTorch computes that in float32 by itself."""
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
    assert output.dtype == torch.float32
    return functional.cross_entropy(output, target)


@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize(("loss", "refused"), [(refused_by_autocast, True), (functional.cross_entropy, False)])
def test_a_loss_that_autocast_refuses_is_computed_in_float32(loss, refused, compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)
    model = nn.Linear(LABELLED[0].shape[1], 3)
    exact = functional.cross_entropy(model(LABELLED[0]), LABELLED[1]).item()
    plan = StepPlan(
        mode=Mode.TRAIN, device="cpu", autocast="bfloat16", compile_mode=compiled, compile_scope="with_loss"
    )
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, plan)
    assert step.loss_is_open
    assert ("computed in float32" in step.settle_loss(LABELLED)) is refused
    assert not step.loss_is_open
    assert step(LABELLED).item() == pytest.approx(exact, rel=0.02)


def test_a_loss_in_float32_keeps_its_name_for_the_target():
    """A step over several GPUs finds the target in a mapping by it."""
    seen = in_float32(lambda output, kept: output * kept, "cpu")
    assert target_name_of(seen) == "kept"
    assert target_name_of(in_float32(OpenModelLoss(), "cpu")) == target_name_of(OpenModelLoss())


@pytest.mark.parametrize(
    ("loss", "may"), [(nn.CrossEntropyLoss(), False), (nn.BCELoss(), True), (functional.cross_entropy, True)]
)
def test_which_losses_autocast_could_refuse(loss, may):
    assert may_refuse_autocast(loss) is may


@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda output, batch: functional.cross_entropy(output["scores"], batch["labels"]), ""),
        (lambda out, b: functional.cross_entropy(out["scores"], b["labels"]), "the loss gets the whole batch"),
        (lambda a, b: functional.cross_entropy(a["scores"], b["labels"]), "the loss gets the whole batch"),
        (lambda out, b: out["loss"] * (b["labels"] >= 0).all(), "the model gets the labels too and the loss gets"),
        (lambda output, batch: functional.cross_entropy(output["scores"], batch), "the loss gets the target"),
    ],
)
def test_a_loss_that_reads_its_targets_off_the_batch_gets_the_whole_of_it(loss, told, compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)
    model, batch = NamedLoss(), {"x": LABELLED[0], "labels": LABELLED[1]}
    expected = model(**batch).loss.item()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode=compiled, compile_scope="with_loss")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, plan)
    found = step.settle_loss(batch)
    assert found.startswith(told)
    assert bool(found) is bool(told)
    assert step.settle_loss(batch) == ""
    assert step(batch).item() == pytest.approx(expected)
    known = step.loss_of_known_form
    whole = told != "the loss gets the target"
    assert takes_output_and_batch(known) is whole, "a step over several GPUs reads it off the signature"


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, batch: functional.cross_entropy(output, batch[1]),
        lambda a, b: functional.cross_entropy(a, b[1]) * 1,
        functional.cross_entropy,
    ],
)
def test_of_a_pair_a_loss_may_read_its_target_too(loss):
    model = nn.Linear(LABELLED[0].shape[1], 3)
    expected = functional.cross_entropy(model(LABELLED[0]), LABELLED[1]).item()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, StepPlan(mode=Mode.TRAIN, device="cpu"))
    step.settle_loss(LABELLED)
    assert step(LABELLED).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        (lambda out: out, True),
        (nn.Flatten(), True),
        (lambda out, target=None: out, False),
        (lambda out, temperature=0.5: out, True),
        (lambda out, reduction="mean", weight=None: out, True),
        (lambda out, other, temperature=0.5: out, False),
        (lambda *parts: 0, False),
        (lambda model: 0, False),
        (nn.MSELoss(), False),
    ],
)
def test_it_is_told_by_the_arguments_that_it_takes(loss, alone):
    assert takes_output_only(loss) is alone


# --- batches of more parts than inputs and a target -----------------------------------------------------------

TRIPLE = torch.randn(8, 4), torch.randint(3, (8,)), torch.rand(8)


def step_with(model, loss, **plan):
    return TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss, StepPlan(mode=Mode.TRAIN, device="cpu", **plan)
    )


def of_plain(output, target):
    return functional.cross_entropy(output, target)


def weighted(output, labels, weights):
    return (functional.cross_entropy(output, labels, reduction="none") * weights).mean()


@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda output, batch: weighted(output, batch[1], batch[2]), ""),
        (lambda output, target: weighted(output, *target), "parts 2 to 3"),
        (lambda a, b: weighted(a, *b[1:]), "the whole"),
        (lambda anything, batch: weighted(anything, *batch[1:]), "the whole"),
    ],
)
def test_a_loss_gets_the_parts_of_a_batch_that_are_no_inputs(loss, told, compiled, monkeypatch):
    monkeypatch.setattr("advisor.portable.loss_call.compiled_call", lambda call, plan: call)
    model = nn.Linear(4, 3)
    expected = weighted(model(TRIPLE[0]), *TRIPLE[1:]).item()
    step = step_with(model, loss, compile_mode=compiled, compile_scope="with_loss")
    assert told in step.settle_loss(list(TRIPLE))
    assert step(list(TRIPLE)).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), of_plain])
def test_a_loss_of_one_part_gets_the_one_that_works(loss):
    batch = [*TRIPLE[:2], list("abcdefgh")]
    model = nn.Linear(4, 3)
    expected = functional.cross_entropy(model(batch[0]), batch[1]).item()
    step = step_with(model, loss)
    assert "the loss gets part 2 of a batch of 3 parts" in step.settle_loss(batch)
    assert step(batch).item() == pytest.approx(expected)
    again = step_with(model, step.loss_of_known_form)
    again._target_is_open = False  # as for a model over several GPUs
    assert again.settle_loss(batch) == ""


def test_a_loss_that_works_with_several_parts_is_refused():
    batch = torch.randn(8, 4), torch.randn(8, 3), torch.randn(8, 3)
    with pytest.raises(LossError, match="part 2 and part 3 of a batch of 3 parts") as caught:
        step_with(nn.Linear(4, 3), nn.MSELoss()).settle_loss(batch)
    assert "def loss(output, batch)" in caught.value.hint


def test_a_loss_reads_its_target_off_a_pair_that_is_inputs_too():
    class Translates(nn.Linear):
        def forward(self, source, target):
            return super().forward(source + target)

    model, batch = Translates(4, 3), (torch.randn(8, 4), torch.randn(8, 4))
    expected = (model(*batch) * batch[1][:, :3]).mean().item()
    step = step_with(model, lambda output, batch: (output * batch[1][:, :3]).mean())
    assert step(batch).item() == pytest.approx(expected)


def test_an_optional_input_that_gets_a_part_of_the_batch_is_told():
    class Masked(nn.Linear):
        def forward(self, x, mask=None):
            return super().forward(x if mask is None else x * mask)

    batch = torch.randn(8, 4), torch.ones(8, 4), torch.randint(3, (8,))
    step = step_with(Masked(4, 3), nn.CrossEntropyLoss())
    assert "the first 2 of the 3 parts of a batch, though it needs 1" in step.settle_loss(batch)
    assert step.settle_loss(batch) == ""
    assert step_with(Masked(4, 3), nn.CrossEntropyLoss()).settle_loss((batch[0], batch[2])) == ""


def test_the_target_is_what_the_loss_names():
    model, batch = nn.Linear(4, 3), {"input": torch.randn(8, 4), "labels": torch.zeros(8), "clean": torch.ones(8, 3)}
    step = step_with(model, lambda output, clean: functional.mse_loss(output, clean) + 1)
    expected = functional.mse_loss(model(batch["input"]), batch["clean"]).item() + 1
    assert step.loss_is_open
    assert step(batch).item() == pytest.approx(expected)
    assert not step.loss_is_open
    again = step_with(model, step.loss_of_known_form)
    expected = functional.mse_loss(model(batch["input"]), batch["clean"]).item() + 1
    assert again(batch).item() == pytest.approx(expected)


def test_a_model_that_reads_a_mapping_gets_it():
    class Actor(nn.Linear):
        def forward(self, td):
            return super().forward(td["seen"])

    model, batch = Actor(4, 3), {"seen": TRIPLE[0], "action": TRIPLE[1], "advantage": TRIPLE[2]}
    expected = weighted(model(batch), *TRIPLE[1:]).item()
    step = step_with(model, lambda a, td: weighted(a, td["action"], td["advantage"]))
    assert "the model gets the whole batch: the loss works only so" in step.settle_loss(batch)
    assert step(batch).item() == pytest.approx(expected)


def test_a_loss_reads_its_targets_off_an_object():
    class Graphs(nn.Linear):
        def forward(self, x, edges):
            return super().forward(x[edges])

    batch = SimpleNamespace(x=TRIPLE[0], edges=torch.arange(8), y=TRIPLE[1], mask=TRIPLE[2] > 0.5)
    step = step_with(Graphs(4, 3), lambda output, b: functional.cross_entropy(output[b.mask], b.y[b.mask]))
    assert "the loss gets the whole batch" in step.settle_loss(batch)


# --- a loss that holds modules --------------------------------------------------------------------------------


class Queue(nn.Module):
    """Keeps the outputs that it saw in a buffer that it replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8, 3))
        self.calls = 0

    def forward(self, output, target):
        self.calls += 1
        loss = (output - self.seen).square().mean() + functional.cross_entropy(output, target["classes"])
        self.seen = output.detach()
        return loss


def method_of(queue):
    class Trainer:
        def __init__(self):
            self.criteria = {"queue": queue}

        def loss(self, a, b):
            return self.criteria["queue"](a, b)

    return Trainer().loss


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda queue: queue,
        lambda queue: lambda a, b: 2 * queue(a, b),
        lambda queue: functools.partial(of_both, call=queue),
        method_of,
    ],
    ids=["itself", "around a function", "given beforehand", "of an object"],
)
def test_a_try_changes_no_module_of_the_loss(loss_of):
    queue = Queue()
    assert modules_of_loss(loss_of(queue)) == [queue]
    step = step_with(nn.Linear(4, 3), loss_of(queue))
    step.settle_loss({"input": TRIPLE[0], "label": {"classes": TRIPLE[1]}})
    assert queue.calls == 0
    assert queue.seen.count_nonzero() == 0


def test_the_modules_of_a_loss_are_those_that_it_reads():
    assert modules_of_loss(None) == []
    assert modules_of_loss(functional.cross_entropy) == []
    assert modules_of_loss(lambda output, target: TEACHER(output)) == [TEACHER]


TEACHER = nn.Linear(3, 3)


@pytest.mark.parametrize("make", [lambda scores: scores, lambda scores: {"boxes": scores, "steps": torch.tensor(2.0)}])
def test_without_a_loss_what_a_model_returns_as_numbers_is_its_own(make):
    score = torch.tensor(-3.0, requires_grad=True)
    assert default_loss(make(score), None).item() == -3.0


def test_without_a_loss_a_number_in_a_tuple_is_the_models_own():
    loss, scores = torch.tensor(-3.0, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    assert default_loss((loss, scores), TRIPLE[1]) is loss
    assert default_loss((scores, loss), list(TRIPLE)) is loss, "the model took the whole batch"
    assert default_loss((scores, loss), TRIPLE[1]) == functional.cross_entropy(scores, TRIPLE[1]), "a part of the loss"
