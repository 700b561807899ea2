"""Steps of the user's own that a graph cannot repeat: refused in a sentence, and the step goes on."""

import collections
import copy
import functools
import io
import pathlib
import queue
import random
import types

import pytest
import torch
from graph_stand_in import RecordedGraph
from own_step_loops import STEPS, Loop, agree, batches, captured_step, net, run, sgd, trainer

from advisor.recipe.plan import StepPlan
from advisor.step.graphed_own_step import GraphedOwnStep
from advisor.step.step import OwnStep


def refused(body, **names):
    """A loop whose step trains and then runs ``body`` with the model, the batch, the loss and its own names."""

    def make():
        model = net()
        optimizer = sgd(model)
        state = types.SimpleNamespace(**{name: copy.deepcopy(value) for name, value in names.items()})

        def step(batch):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result = body(state, model, batch, loss)
            return loss if result is None else result

        return Loop(step, [model], [optimizer], state)

    return make


def counts_up(state, model, batch, loss):
    state.steps += 1


def updates_every_third_step(state, model, batch, loss):
    state.steps = (state.steps + 1) % 3
    if state.steps == 0:
        with torch.no_grad():
            model[0].weight.mul_(0.9)


def keeps_losses(state, model, batch, loss):
    state.losses.append(loss.detach())


def reads(state, model, batch, loss):
    return loss.item()


def branches(state, model, batch, loss):
    if loss > 0.1:
        model[0].weight.data.mul_(0.9)


def picks_by_mask(state, model, batch, loss):
    return loss + 0 * batch[batch > 0].sum()


def counts_ones(state, model, batch, loss):
    return loss + 0 * torch.nonzero(batch).sum()


def draws_by_torch(state, model, batch, loss):
    return loss + torch.rand(())


def draws_by_python(state, model, batch, loss):
    return loss + random.random()


def draws_by_its_own(state, model, batch, loss):
    return loss + state.draws.random()


def samples_a_buffer(state, model, batch, loss):
    return loss + random.choice(state.buffer).mean()


def carries_a_state(state, model, batch, loss):
    state.hidden = 0.5 * state.hidden + batch.mean()
    return loss + state.hidden


def writes_into_the_batch(state, model, batch, loss):
    batch.mul_(0.5)


def schedules(state, model, batch, loss):
    state.schedule["rate"] = 0.9 * state.schedule["rate"]
    return loss * state.schedule["rate"]


def writes_a_line(state, model, batch, loss):
    state.file.write("a step\n")


def takes_the_next(state, model, batch, loss):
    return loss * next(state.numbers)


def reads_a_file(state, model, batch, loss):
    with state.path.open(encoding="utf-8") as file:
        return loss * len(file.readline())


def evaluates(state, model, batch, loss):
    return loss * eval("state.factor")


REFUSED = [
    (reads_a_file, {"path": pathlib.Path(__file__)}, "the step reads a file"),
    (evaluates, {"factor": 2.0}, "evaluates may reach anything by eval"),
    (counts_up, {"steps": 0}, "the step changes .*steps each time, and a replay runs no Python"),
    (updates_every_third_step, {"steps": 0}, "the step changes .*steps each time"),
    (keeps_losses, {"losses": []}, "the step changes .*losses"),
    (reads, {}, r"the step reads a value on the host \(test_graphed_own_step_refused.py:\d+\)"),
    (branches, {}, "the step reads a value on the host"),
    (picks_by_mask, {}, "a tensor whose shape depends on values"),
    (counts_ones, {}, "a tensor whose shape depends on values"),
    (draws_by_torch, {}, "draws random numbers on the host"),
    (draws_by_python, {}, "draws random numbers on the host"),
    (draws_by_its_own, {"draws": random.Random(3)}, "draws random numbers on the host"),
    (samples_a_buffer, {"buffer": collections.deque(map(torch.ones, (2, 3)))}, "draws random numbers on the host"),
    (carries_a_state, {"hidden": torch.zeros(())}, "the step changes .*hidden"),
    (writes_into_the_batch, {}, "writes into the batch"),
    (schedules, {"schedule": {"rate": 1.0}}, "the step changes .*rate"),
    (writes_a_line, {"file": io.StringIO()}, "reaches .*file .*whose state cannot be compared"),
    (takes_the_next, {"numbers": iter([1.0, 2.0, 3.0] * STEPS)}, "reaches .*numbers .*, an iterator"),
]


@pytest.mark.parametrize(("body", "names", "said"), REFUSED, ids=[body.__name__ for body, _, _ in REFUSED])
def test_what_a_graph_cannot_repeat_is_refused_in_a_sentence_and_the_step_goes_on(body, names, said):
    random.seed(4)
    torch.manual_seed(4)
    plain = run(refused(body, **names), captures=False, data=batches())
    random.seed(4)
    torch.manual_seed(4)
    with pytest.warns(UserWarning, match=f"step.cuda_graph is left out, the step runs as it is: .*{said}") as warned:
        losses, states, _, step = run(refused(body, **names), captures=True, data=batches())
    assert losses == pytest.approx(plain[0], rel=1e-5)
    for state, other in zip(plain[1], states, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert step.graph.captures == 0
    assert len([one for one in warned if "cuda_graph" in str(one.message)]) == 1


def test_what_a_step_takes_by_a_method_of_a_queue_refuses_it():
    def make():
        model, waiting = net(), queue.SimpleQueue()
        for place in range(STEPS):
            waiting.put(1.0 + place)
        optimizer, take = sgd(model), waiting.get

        def step(batch):
            loss = model(batch).square().mean() * take()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model], [optimizer])

    with pytest.warns(UserWarning, match="the step changes what an array or a queue holds each time"):
        agree(make)


@pytest.mark.parametrize("assigns", [False, True])
def test_a_rate_that_a_step_sets_stays(assigns):
    """While it is watched, the groups hold their rates in tensors, which schedulers fill in place."""

    def make():
        model = net()
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def step(batch):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if assigns:
                optimizer.param_groups[0]["lr"] = 0.01
            else:
                schedule.step()
            return loss

        return Loop(step, [model], [optimizer])

    def change(at, loop):
        rates.append(loop.optimizers[0].param_groups[0]["lr"])

    rates: list[float] = []
    agree(make, change=change)
    assert rates[STEPS:] == pytest.approx(rates[:STEPS])
    assert {type(rate) for rate in rates} == {float}


def test_gradients_that_are_cleared_outside_are_not_captured():
    """A graph overwrites gradients where a step adds to those that are there."""

    def make():
        model = net()

        def step(batch):
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        return Loop(step, [model], [sgd(model)])

    def change(at, loop):
        if at % 3 == 0:
            loop.optimizers[0].step()
            loop.optimizers[0].zero_grad()

    agree(make, change=change, data=batches(30))


def test_a_tensor_that_no_variable_leads_to_is_refused():
    """Its replacement would not be noticed."""

    def make():
        model, queue = net(), collections.UserList()
        offset = functools.cache(lambda: torch.ones(8))
        offset()

        def step(batch):
            return model(batch + offset()).square().mean()

        return Loop(step, [model], [], queue)

    with pytest.warns(UserWarning, match=r"a tensor \(8\) that is not found in its variables"):
        step = agree(make)
    assert step.graph.captures == 0


def test_a_capture_that_fails_leaves_everything_as_it_was():
    class Failing(RecordedGraph):
        def capture(self, call, generators=()):
            def fails():
                call()
                raise RuntimeError("operation not permitted when stream is capturing")

            super().capture(fails)

    def make():
        loop = trainer()
        loop.optimizers[0].param_groups[0]["lr"] = 0.02
        return loop

    losses, states, _, _ = run(make, captures=False)
    loop = make()
    step = GraphedOwnStep(OwnStep(loop.step, loop.modules[0], StepPlan(mode="train", device="cpu")), Failing())
    with pytest.warns(UserWarning, match="it cannot be captured: operation not permitted"):
        others = [float(step(batch)) for batch in batches()]
    assert others == losses
    for state, module in zip(states, loop.modules, strict=True):
        assert all(torch.equal(value, module.state_dict()[name]) for name, value in state.items())
    assert loop.optimizers[0].param_groups[0]["lr"] == 0.02


def test_an_exception_in_the_middle_of_a_capture_leaves_no_frozen_layer_behind():
    """As where the second half of a step unfreezes what the first has frozen."""
    loop = trainer()
    armed = []

    def step(batch):
        loop.rest.model[0].requires_grad_(False)
        if armed and isinstance(torch.utils._python_dispatch._get_current_dispatch_mode(), armed[0]):
            raise RuntimeError("not in a capture")
        loop.rest.model[0].requires_grad_(True)
        return loop.rest.train_step(batch)

    from graph_stand_in import _Recorder

    armed.append(_Recorder)
    captured = captured_step(step, loop.rest.model)
    with pytest.warns(UserWarning, match="not in a capture"):
        list(map(captured, batches(6)))
    assert all(parameter.requires_grad for parameter in loop.rest.model.parameters())
    assert all(parameter.grad is not None for parameter in loop.rest.model.parameters())


def test_a_trial_ends_with_the_reason():
    from advisor.errors import RefusedError
    from advisor.step.make_step import raise_refusal

    loop = refused(reads)()
    own = OwnStep(loop.step, loop.modules[0], StepPlan(mode="train", device="cpu"))
    step = GraphedOwnStep(own, RecordedGraph(), refuse=raise_refusal)
    with pytest.raises(RefusedError, match="the step cannot be captured in a CUDA graph: the step reads a value"):
        list(map(step, batches(5)))
