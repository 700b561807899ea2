"""The four forms of a loss: told by its signature, found by the inspection, and called on batches of many kinds."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.recipe.plan import StepPlan
from advisor.step.loss import FORMS, LossError, LossForm, default_loss, form_of, main_output
from advisor.step.step import TrainStep
from advisor.trial.timed_loop import form_that_works

MODEL_BATCH, OUTPUT_TARGET, OWN = LossForm.MODEL_BATCH, LossForm.OUTPUT_TARGET, LossForm.OWN


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def of_model(model, batch): ...
def of_batch(whatever, batch): ...
def of_annotated(thing: nn.Module, b): ...
def of_output(output, target): ...
def of_unknown_annotation(output: NoSuchClass, target): ...  # noqa: F821
def of_open(a, b, weight): ...


class Criterion:
    def __call__(self, model, inputs): ...


class OpenCriterion:
    def __call__(self, first, second): ...


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        (None, OWN),
        (of_model, MODEL_BATCH),
        (of_annotated, MODEL_BATCH),
        (lambda m, b: None, MODEL_BATCH),
        (Criterion(), MODEL_BATCH),
        (of_output, OUTPUT_TARGET),
        (of_unknown_annotation, OUTPUT_TARGET),
        (lambda scores, b: None, OUTPUT_TARGET),
        (functional.cross_entropy, OUTPUT_TARGET),
        (nn.CrossEntropyLoss(), OUTPUT_TARGET),
        (of_batch, None),
        (functools.partial(of_open, weight=2.0), None),
        (lambda a, b: None, None),
        (OpenCriterion(), None),
    ],
)
def test_a_signature_tells_the_form_or_leaves_it_open(loss, form):
    assert form_of(loss) is form


class TargetFirst(nn.Module):
    def forward(self, y_true, y_pred):
        return (y_true - y_pred).clamp(min=0).mean()


@pytest.mark.parametrize("loss", [TargetFirst(), lambda y_true, y_pred: None])
def test_a_loss_of_a_target_and_an_output_in_this_order_is_refused(loss):
    with pytest.raises(LossError, match=r"takes y_true first: pass `lambda output, target: loss\(target, output\)`"):
        form_of(loss)


BATCH = torch.arange(24.0).reshape(4, 6), torch.tensor([0, 1, 2, 0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        (lambda a, b: functional.cross_entropy(a(b[0]), b[1]), MODEL_BATCH),
        (lambda *args: functional.cross_entropy(args[0](args[1][0]), args[1][1]), MODEL_BATCH),
        (lambda a, b: 1.0 * functional.cross_entropy(a, b), OUTPUT_TARGET),
        (functools.partial(torch._C._nn.cross_entropy_loss, reduction=1), OUTPUT_TARGET),  # has no signature
    ],
)
def test_an_open_form_is_found_and_leaves_the_model_as_it_was(loss, form):
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    assert form_that_works(loss, model, BATCH) is form
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), draws)


def test_a_loss_that_works_in_no_form_is_told_the_four():
    with pytest.raises(LossError) as caught:
        form_that_works(lambda a, b: 1.0, Net(), BATCH)
    assert caught.value.message.count("float, not a tensor") == 2
    assert caught.value.hint == FORMS
    assert all(
        text in FORMS for text in ("loss(model, batch)", "loss(output, target)", "the model's own", "step(batch)")
    )


def test_a_model_that_fails_in_both_forms_is_left_to_the_first_step():
    class Failing(nn.Module):
        def forward(self, inputs):
            raise ValueError("boom")

    assert form_that_works(lambda a, b: a(b), Failing(), BATCH) is LossForm.OUTPUT_TARGET


def test_memory_that_runs_out_says_nothing_about_the_form():
    def hungry(a, b):
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        form_that_works(hungry, Net(), BATCH)


# --- what a loss gets -------------------------------------------------------------------------------------------------

LABELLED = torch.randn(8, 4), torch.randint(3, (8,))
TRIPLE = *LABELLED, torch.rand(8)


def step_with(model, loss, form=None, **plan):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, loss, StepPlan(mode="train", device="cpu", **plan), form)


@pytest.fixture(params=["plain", "compiled with the loss"])
def compiled(request, monkeypatch):
    """The plan of a step whose loss is compiled with the model, without a compiler; and that of a plain one."""
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    return {} if request.param == "plain" else {"compile_mode": "default", "compile_scope": "with_loss"}


def weighted(output, labels, weights):
    return (functional.cross_entropy(output, labels, reduction="none") * weights).mean()


class WeightedLoss(nn.Module):
    def forward(self, output, labels, weights):
        return weighted(output, labels, weights)


class OwnLoss(nn.Module):
    """Computes its loss where it gets labels, as nanoGPT does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        scores = self.linear(x)
        return scores, functional.cross_entropy(scores, labels) if labels is not None else None


class Scores(dict):
    """Outputs of Hugging Face's models: without labels they hold no loss."""

    loss = property(lambda self: self.get("loss"))


class NamedLoss(OwnLoss):
    def forward(self, x, labels=None):
        scores, loss = super().forward(x, labels)
        return Scores(scores=scores) if loss is None else Scores(scores=scores, loss=loss)


def named(batch):
    return dict(zip(("x", "labels", "weights"), batch, strict=False))


@pytest.mark.parametrize(
    ("model", "loss", "batch"),
    [
        (nn.Linear(4, 3), functional.cross_entropy, LABELLED),
        (nn.Linear(4, 3), lambda m, b: functional.cross_entropy(m(b[0]), b[1]), LABELLED),
        (nn.Linear(4, 3), lambda model, x, y: functional.cross_entropy(model(x), y), LABELLED),
        (NamedLoss(), lambda output, target: functional.cross_entropy(output["scores"], target), named(LABELLED)),
        (NamedLoss(), lambda model, batch: model(**batch).loss, named(LABELLED)),
        (NamedLoss(), None, named(LABELLED)),
        (OwnLoss(), None, LABELLED),
    ],
)
def test_the_forms_on_pairs_and_mappings(model, loss, batch, compiled):
    expected = functional.cross_entropy(getattr(model, "linear", model)(LABELLED[0]), LABELLED[1]).item()
    assert step_with(model, loss, **compiled)(batch).item() == pytest.approx(expected)


@pytest.mark.parametrize("form", [MODEL_BATCH, OUTPUT_TARGET])
def test_the_form_of_an_open_loss_can_be_said(form, compiled):
    model = nn.Linear(4, 3)
    expected = functional.cross_entropy(model(LABELLED[0]), LABELLED[1]).item()
    calls = {
        MODEL_BATCH: lambda a, b: functional.cross_entropy(a(b[0]), b[1]),
        OUTPUT_TARGET: lambda a, b: 1.0 * functional.cross_entropy(a, b),
    }
    assert step_with(model, calls[form], form, **compiled)(LABELLED).item() == pytest.approx(expected)


@pytest.mark.parametrize("batch", [list(TRIPLE), dict(zip(("input", "labels", "weights"), TRIPLE, strict=True))])
@pytest.mark.parametrize("loss", [weighted, WeightedLoss()])
def test_a_loss_of_several_targets_gets_them_one_by_one(batch, loss, compiled):
    model = nn.Linear(4, 3)
    expected = weighted(model(TRIPLE[0]), *TRIPLE[1:]).item()
    assert step_with(model, loss, **compiled)(batch).item() == pytest.approx(expected)
    short = batch[:2] if isinstance(batch, list) else {"input": TRIPLE[0], "labels": TRIPLE[1]}
    with pytest.raises(LossError, match=r"needs labels and weights besides the output.*\(inputs, labels, weights\)"):
        step_with(model, loss, **compiled)(short)


def test_the_named_losses_of_a_detector_are_added_up():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, images, targets=None):
            scores = self.linear(torch.stack(images))
            boxes = sum(target["boxes"].mean() for target in targets)
            return {"classes": scores.square().mean(), "boxes": boxes * scores.mean()}

    batch = [torch.ones(4), torch.zeros(4)], [{"boxes": torch.ones(2, 4)}, {"boxes": torch.zeros(1, 4)}]
    model = Detector()
    losses = model(*batch)
    assert step_with(model, None)(batch).item() == pytest.approx((losses["classes"] + losses["boxes"]).item())


def test_binary_cross_entropy_of_probabilities_is_computed_in_float32():
    seen = []

    class Seen(nn.BCELoss):
        def forward(self, output, target):
            seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
            return super().forward(output, target)

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    step_with(model, Seen(), autocast="bfloat16")((LABELLED[0], torch.ones(8, 1)))
    assert seen == [(torch.float32, False)]


# --- what a loss returns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: (loss, {"accuracy": 0.5}),
        lambda loss: (loss, 2 * loss),
        lambda loss: [loss, torch.ones(())],
        lambda loss: (torch.ones(4, 3), loss),
        lambda loss: {"loss": loss, "logits": torch.ones(4, 3)},
        lambda loss: SimpleNamespace(loss=loss),
    ],
)
def test_the_loss_is_found_in_what_a_loss_function_returns(wrap):
    model = nn.Linear(4, 3)
    expected = functional.cross_entropy(model(LABELLED[0]), LABELLED[1]).item()
    step = step_with(model, lambda output, target: wrap(functional.cross_entropy(output, target)))
    assert step(LABELLED).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (lambda loss: loss.expand(4), "4 numbers, not one"),
        (lambda loss: {"a": loss, "b": loss}, "dict with a, b"),
        (lambda loss: [loss, 2 * loss], "several numbers"),
        (lambda loss: loss.item(), "float, not a tensor"),
    ],
)
def test_a_loss_function_that_returns_no_loss_says_so(value, complaint):
    step = step_with(nn.Linear(4, 3), lambda output, target: value(functional.cross_entropy(output, target)))
    with pytest.raises(LossError) as caught:
        step(LABELLED)
    assert complaint in caught.value.message
    assert FORMS in caught.value.hint


# --- the loss of a workload that brings none --------------------------------------------------------------------------


OUTPUT, SCORES, CLASSES = torch.randn(8, 3), torch.randn(8, 3, requires_grad=True), torch.randint(3, (8,))
PIXELS, PIXEL_CLASSES = torch.randn(2, 5, 6, 7), torch.randint(5, (2, 6, 7))
TOKENS, WORDS = torch.randn(2, 6, 50), torch.randint(50, (2, 6))
NUMBER, SQUARE = torch.tensor(-3.0, requires_grad=True), OUTPUT.square().mean()

# An output, its target, and the loss of the two.
DEFAULTS = {
    "the model's own in a mapping": ({"loss": NUMBER}, None, NUMBER),
    "the model's own alone": (NUMBER, None, NUMBER),
    "the only loss in a mapping of numbers": ({"boxes": NUMBER, "steps": torch.tensor(2.0)}, None, NUMBER),
    "anywhere, where the model took the whole batch": ((SCORES, NUMBER), [SCORES, CLASSES], NUMBER),
    "a number beside scores is a part of it": ((SCORES, NUMBER), CLASSES, functional.cross_entropy(SCORES, CLASSES)),
    "classes": (OUTPUT, CLASSES, functional.cross_entropy(OUTPUT, CLASSES)),
    "a class for each pixel": (
        {"out": PIXELS, "aux": PIXELS + 1},
        PIXEL_CLASSES,
        functional.cross_entropy(PIXELS, PIXEL_CLASSES),
    ),
    "a word for each token": (TOKENS, WORDS, functional.cross_entropy(TOKENS.reshape(12, 50), WORDS.reshape(12))),
    "a regression": (OUTPUT, OUTPUT + 2, torch.tensor(4.0)),
    **{
        f"the mean square, for {name}": (OUTPUT, target, SQUARE)
        for name, target in {
            "no target": None,
            "another shape": torch.randn(7),
            "a text": "text",
            "classes of another form": torch.randint(3, (8, 1)),
        }.items()
    },
}


@pytest.mark.parametrize(("output", "target", "expected"), DEFAULTS.values(), ids=DEFAULTS)
def test_the_loss_of_a_workload_that_brings_none(output, target, expected):
    loss = default_loss(output, target)
    torch.testing.assert_close(loss, expected)
    if expected is NUMBER and not isinstance(output, dict):
        assert loss is NUMBER


def test_the_main_output_is_the_first_floating_point_tensor():
    scores = torch.randn(2)
    assert main_output((torch.tensor([1]), [scores, torch.randn(2)])) is scores
    with pytest.raises(TypeError, match="returned str, which holds no floating-point tensor"):
        main_output("text")
