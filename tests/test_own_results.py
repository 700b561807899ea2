"""A step of the user's own gives its callers the results that it returns, captured or not."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from own_step_loops import Loop, Trainer, batches, captured_step, counts, sgd
from torch import nn

from advisor.export.python_file import python_source
from advisor.portable.nested import tensors_of
from advisor.recipe.catalog import load_catalog
from advisor.runtime.tuning import Tuning

Pair = namedtuple("Pair", ["loss", "output"])


@dataclass
class Outcome:
    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    name: str = "outcome"


def trainer_returning(result):
    """A step that returns ``result(trainer, loss, output)``."""
    trainer = Trainer()

    def step(batch):
        trainer.optimizer.zero_grad()
        output = trainer.model(batch)
        loss = output.square().mean()
        loss.backward()
        trainer.optimizer.step()
        trainer.last_loss = loss.detach()
        return result(trainer, loss, output)

    return Loop(step, [trainer.model], [trainer.optimizer], trainer)


def kinds(value):
    """A result with the shapes of its tensors in their places."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, dict):
        return type(value), {key: kinds(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [kinds(one) for one in value]
    return type(value), kinds(vars(value)) if hasattr(value, "__dict__") else value


def model_output(trainer, loss, output):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.SequenceClassifierOutput(loss=loss, logits=output)


RESULTS = {
    "dict": lambda trainer, loss, output: {"loss": loss, "output": output, "size": len(output), "kind": "train"},
    "tuple": lambda trainer, loss, output: (loss, output, {"mean": output.mean(), "none": None}),
    "namedtuple": lambda trainer, loss, output: Pair(loss, output),
    "model output": model_output,
    "dataclass": lambda trainer, loss, output: Outcome(loss.detach(), {"output": output.detach()}),
    "no loss": lambda trainer, loss, output: [output, output.sum(0)],
    "nothing": lambda trainer, loss, output: None,
    "a plain value": lambda trainer, loss, output: "done",
}


@pytest.mark.parametrize("kind", RESULTS)
def test_every_call_returns_what_the_plain_step_returns(kind):
    loop, other = trainer_returning(RESULTS[kind]), trainer_returning(RESULTS[kind])
    step = captured_step(other.step, other.modules[0])
    wanted, found = ([one(batch) for batch in batches()] for one in (loop.step, step))
    assert counts(step) == (1, 9)
    assert list(map(kinds, found)) == list(map(kinds, wanted))
    for ours, theirs in zip(tensors_of(found), tensors_of(wanted), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", RESULTS)
def test_an_uncaptured_step_hands_it_on(kind):
    loop = trainer_returning(RESULTS[kind])
    found = []
    tuning = Tuning({"precision.autocast": "bfloat16"})
    model, _ = tuning.prepare(loop.modules[0], loop.optimizers[0])
    step = tuning.own_step(lambda batch: found.append(loop.step(batch)) or found[-1], model)
    assert all(step(batch) is found[-1] for batch in batches(3))


def test_the_python_file_hands_it_on():
    file = {}
    exec(python_source(load_catalog(), {"precision.autocast": "bfloat16"}, "train", own_step=True), file)
    loop = trainer_returning(RESULTS["dict"])
    assert set(file["own_step"](loop.step, loop.modules[0])(batches(1)[0])) == {"loss", "output", "size", "kind"}


def test_results_are_the_callers_and_stay_as_they_were():
    loop = trainer_returning(RESULTS["dict"])
    step = captured_step(loop.step, loop.modules[0])
    found = [step(batch) for batch in batches()]
    losses = [float(one["loss"].detach()) for one in found]
    assert len(set(losses)) == len(losses)
    assert losses[-1] == pytest.approx(float(loop.rest.last_loss))


def test_what_the_step_reaches_is_returned_itself():
    """As in a plain loop, where the caller has the state, a weight and its views, not copies of them."""
    loop = trainer_returning(
        lambda trainer, loss, output: {
            "trainer": trainer,
            "bias": trainer.model[2].bias,
            "row": trainer.model[0].weight[0],
            "mean": next(trainer.average.buffers(), None),
        }
    )
    step = captured_step(loop.step, loop.modules[0])
    results = [step(batch) for batch in batches()]
    assert counts(step) == (1, 9)
    model = loop.modules[0]
    for result in results:
        assert result["trainer"] is loop.rest
        assert result["bias"] is model[2].bias
        assert torch.equal(result["row"], model[0].weight[0])


def test_a_dict_of_metrics_that_the_step_keeps_is_that_dict():
    metrics = {}

    def note(trainer, loss, output):
        metrics["loss"] = loss.detach()
        return metrics

    loop = trainer_returning(note)
    step = captured_step(loop.step, loop.modules[0])
    for batch in batches():
        assert step(batch) is metrics
        assert float(metrics["loss"]) == pytest.approx(float(loop.rest.last_loss))
    assert step.captured


def test_a_learning_rate_among_the_results_is_refused():
    """A captured step has it in a tensor: the caller would get that in place of a number."""
    loop = trainer_returning(
        lambda trainer, loss, output: {"loss": loss, "lr": trainer.optimizer.param_groups[0]["lr"]}
    )
    step = captured_step(loop.step, loop.modules[0])
    with pytest.warns(UserWarning, match="read it in the loop"):
        rates = [step(batch)["lr"] for batch in batches()]
    assert step.graph.captures == 0
    assert isinstance(rates[-1], float)


def test_a_value_that_changes_each_time_is_refused():
    loop = trainer_returning(lambda trainer, loss, output: (loss, object()))
    step = captured_step(loop.step, loop.modules[0])
    with pytest.warns(UserWarning, match="each time"):
        results = [step(batch) for batch in batches()]
    assert len({id(one) for _, one in results}) == len(results)


class TestGoingBackwardsOutsideTheStep:
    """A step that only computes the loss, in a loop that does the rest."""

    def loop(self):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        return model, sgd(model), lambda batch: {"loss": model(batch).square().mean(), "name": "loss"}

    def train(self, step, optimizer, data, *, first=0):
        losses = []
        for at, batch in enumerate(data):
            loss = step(batch)["loss"]
            if at >= first:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    def test_runs_uncaptured_with_a_warning(self):
        model, optimizer, step = self.loop()
        wanted = self.train(step, optimizer, batches())
        model, optimizer, step = self.loop()
        captured = captured_step(step, model)
        with pytest.warns(UserWarning, match="the loop goes backwards from a tensor that the step returns"):
            assert self.train(captured, optimizer, batches()) == wanted
        assert captured.graph.captures == 0

    def test_is_an_error_where_the_loop_begins_it_after_a_capture(self):
        model, optimizer, step = self.loop()
        captured = captured_step(step, model)
        with pytest.raises(RuntimeError, match="a replay does not record"):
            self.train(captured, optimizer, batches(), first=6)

    def test_a_result_that_nobody_differentiates_is_captured(self):
        model, optimizer, step = self.loop()
        captured = captured_step(step, model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.train(captured, optimizer, batches(), first=100)
        assert captured.captured
