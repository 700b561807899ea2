"""What a loss and a model are called with: told by the loss's parameters, by the batch, or by tries."""

import functools
from types import SimpleNamespace

import pytest
import torch
from advisor.step.loss_tries import in_float32, may_refuse_autocast
from torch import nn
from torch.nn import functional

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.loss import LossError, modules_of_loss, takes_output_only, target_name_of
from advisor.step.losses import takes_output_and_batch
from advisor.step.step import TrainStep


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class OpenModelLoss:
    def __call__(self, first, second):
        return functional.cross_entropy(first(second[0]), second[1])


def of_both(a, b, call):
    return call(a, b)


def of_parts(model, inputs, targets):
    return functional.cross_entropy(model(inputs), targets)


@pytest.mark.parametrize("batch", [tuple, lambda pair: dict(zip(("inputs", "targets"), pair, strict=True))])
def test_a_loss_of_the_model_may_take_the_parts_of_a_batch_one_by_one(batch):
    model = nn.Linear(4, 3)
    plan = StepPlan(mode="train", device="cpu")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), of_parts, plan)
    expected = of_parts(model, *LABELLED).item()
    assert step(batch(LABELLED)).item() == pytest.approx(expected)


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
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)
    model = OwnLoss()
    expected = model(*LABELLED)[1].item()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode=compiled, compile_scope="with_loss")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda out: out[1], plan)
    assert step(batch).item() == pytest.approx(expected)
    assert step.loss_of_known_form((1, 2)) == 2


@pytest.mark.parametrize("compiled", ["none", "default"])
def test_without_a_loss_the_model_that_makes_its_own_gets_the_target(compiled, monkeypatch):
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)

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
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)
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
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)
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
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)
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
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)
    model = nn.Linear(4, 3)
    expected = weighted(model(TRIPLE[0]), *TRIPLE[1:]).item()
    step = step_with(model, loss, compile_mode=compiled, compile_scope="with_loss")
    assert told in step.settle_loss(list(TRIPLE))
    assert step(list(TRIPLE)).item() == pytest.approx(expected)


class WeightedLoss(nn.Module):
    def forward(self, output, labels, weights):
        return weighted(output, labels, weights)


@pytest.mark.parametrize("batch", [list, lambda parts: dict(zip(("x", "labels", "weights"), parts, strict=True))])
@pytest.mark.parametrize("loss", [weighted, WeightedLoss()])
@pytest.mark.parametrize("compiled", ["none", "default"])
def test_a_loss_of_several_targets_gets_them_one_by_one(batch, loss, compiled, monkeypatch):
    monkeypatch.setattr("advisor.step.loss_call.compiled_call", lambda call, plan: call)

    class Net(nn.Linear):
        def forward(self, x, mask=None):
            assert mask is None
            return super().forward(x)

    model = Net(4, 3)
    expected = weighted(model(TRIPLE[0]), *TRIPLE[1:]).item()
    step = step_with(model, loss, compile_mode=compiled, compile_scope="with_loss")
    assert step(batch(TRIPLE)).item() == pytest.approx(expected)
    assert step_with(model, step.loss_of_known_form)(batch(TRIPLE)).item() != pytest.approx(expected)  # one step on
    with pytest.raises(LossError, match=r"needs labels and weights beside the output.*\(inputs, labels, weights\)"):
        step(batch(TRIPLE)[:2] if batch is list else {"x": TRIPLE[0], "labels": TRIPLE[1]})


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), of_plain])
def test_a_loss_of_one_part_gets_the_one_that_works(loss):
    batch = [*TRIPLE[:2], list("abcdefgh")]
    model = nn.Linear(4, 3)
    expected = functional.cross_entropy(model(batch[0]), batch[1]).item()
    step = step_with(model, loss)
    assert "the loss gets part 2 of a batch of 3 parts" in step.settle_loss(batch)
    assert step(batch).item() == pytest.approx(expected)
    again = step_with(model, step.loss_of_known_form)
    again.tries._target_is_open = False  # as for a model over several GPUs
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
