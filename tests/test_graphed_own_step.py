"""Steps of the user's own, captured, beside plain loops; on a graph that records operators in place of a CUDA graph."""

from __future__ import annotations

import collections
import copy
import functools
import random
import sys
import types
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from graph_stand_in import RecordedGraph
from torch import nn

from advisor.portable.graphed_own_step import GraphedOwnStep
from advisor.portable.own_step import OwnStep
from advisor.portable.plan import StepPlan

STEPS = 12


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), **{"lr": 0.05, "momentum": 0.9, "fused": True, **options})


def adam(module, **options):
    return torch.optim.Adam(module.parameters(), **{"lr": 0.01, "fused": True, **options})


def batches(count=STEPS, size=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 8, generator=generator) for _ in range(count)]


def net(seed=0, out=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, out))


def captured_step(function, model, **plan):
    own = OwnStep(function, model, StepPlan(mode=plan.pop("mode", "train"), device="cpu", **plan))
    return GraphedOwnStep(own, RecordedGraph())


@dataclass
class Loop:
    """A step with what it works with; ``rest`` is for what a test changes between steps."""

    step: object
    modules: list
    optimizers: list = field(default_factory=list)
    rest: object = None


def run(make, *, captures, data=None, change=lambda at, loop: None):
    """Losses, final states and the loop; ``change`` is called before each step."""
    loop = make()
    step = captured_step(loop.step, nn.ModuleList(loop.modules)) if captures else loop.step
    losses = []
    for at, batch in enumerate(data or batches()):
        change(at, loop)
        losses.append(number_of(step(batch)))
    states = [copy.deepcopy(one.state_dict()) for one in loop.modules]
    return losses, states, loop, step


def number_of(result):
    loss = result["loss"] if isinstance(result, dict) else result
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def agree(make, **options):
    """The captured step, after it was found to compute what the plain one does."""
    losses, states, _, _ = run(make, captures=False, **options)
    others, other_states, _, step = run(make, captures=True, **options)
    assert others == pytest.approx(losses, rel=1e-4)
    for state, other in zip(states, other_states, strict=True):
        for name, value in state.items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)
    return step


def counts(step):
    return step.graph.captures, step.graph.replays


# --- what is captured -----------------------------------------------------------------------------------------


def gan():
    generator, critic = net(0, out=8), net(1)
    of_generator, of_critic = adam(generator), adam(critic)

    def step(real):
        noise = real.roll(1, 0)
        of_critic.zero_grad()
        fake = generator(noise)
        loss_critic = critic(fake.detach()).mean() - critic(real).mean()
        loss_critic.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        of_generator.step()
        return loss + 0 * loss_critic

    return Loop(step, [generator, critic], [of_generator, of_critic])


def q_learning():
    network, target = net(0, out=3), net(0, out=3)
    optimizer = adam(network)

    def step(state):
        with torch.no_grad():
            wanted = state.sum(1) + 0.9 * target(state.flip(0)).max(1).values
        loss = nn.functional.smooth_l1_loss(network(state).gather(1, torch.zeros(len(state), 1).long())[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(network.parameters(), 1.0)
        optimizer.step()
        ours, theirs = network.state_dict(), target.state_dict()
        for name in theirs:
            theirs[name] = 0.9 * theirs[name] + 0.1 * ours[name]
        target.load_state_dict(theirs)
        return loss

    return Loop(step, [network, target], [optimizer])


def gradient_penalty():
    generator, critic = net(0, out=8), net(1)
    of_generator, of_critic = adam(generator), adam(critic)

    def step(real):
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        for _ in range(2):
            of_critic.zero_grad(set_to_none=True)
            fake = generator(real.roll(1, 0)).detach()
            between = (0.3 * real + 0.7 * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
            loss.backward()
            of_critic.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        of_generator.zero_grad()
        (-critic(generator(real.roll(1, 0))).mean()).backward()
        of_generator.step()
        return {"loss": loss.detach(), "other": 1}

    return Loop(step, [generator, critic], [of_generator, of_critic])


def accumulating():
    """Gradients that are added up in place and cleared with zeros."""
    model = net()
    optimizer = sgd(model)

    def step(batch):
        for part in batch.chunk(2):
            (model(part).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return model(batch).square().mean()

    return Loop(step, [model], [optimizer])


class Trainer:
    """A step that is a method, with an average of its weights and a loss that it keeps."""

    def __init__(self):
        self.model = net()
        self.average = net(2)
        self.optimizer = adam(self.model)
        self.weight = 1.0
        self.epoch = 0  # read by nothing in a step
        self.history = []
        self.last_loss = None

    def train_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
        self.last_loss = loss.detach()
        return loss

    def loss_of(self, batch):
        return self.weight * self.model(batch).square().mean()


def trainer():
    made = Trainer()
    return Loop(made.train_step, [made.model, made.average], [made.optimizer], made)


@pytest.mark.parametrize("make", [gan, q_learning, gradient_penalty, accumulating, trainer])
def test_a_captured_step_is_the_plain_one(make):
    step = agree(make)
    assert not step.refusal
    assert counts(step) == (1, STEPS - 3)


def test_what_no_code_of_the_step_names_may_change():
    def change(at, loop):
        loop.rest.epoch = at
        loop.rest.history.append(at)

    assert counts(agree(trainer, change=change)) == (1, STEPS - 3)


def test_a_tensor_that_each_step_replaces_is_the_callers_as_in_a_plain_loop():
    kept = {}
    for captures in (False, True):
        seen = kept[captures] = []
        run(
            trainer,
            captures=captures,
            change=lambda at, loop, seen=seen: at and seen.append(loop.rest.last_loss),
        )
    assert [float(loss) for loss in kept[True]] == pytest.approx([float(loss) for loss in kept[False]], rel=1e-4)
    assert len(set(map(id, kept[True]))) == STEPS - 1


def test_rates_are_copied_in_and_schedulers_go_on():
    def make():
        loop = gan()
        loop.rest = [torch.optim.lr_scheduler.ExponentialLR(one, 0.8) for one in loop.optimizers]
        return loop

    def change(at, loop):
        for schedule in loop.rest if at else ():
            schedule.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counts(agree(make, change=change)) == (1, STEPS - 3)


def test_a_batch_of_another_size_runs_in_between():
    data = [*batches(6), *batches(1, size=4), *batches(5)]
    step = agree(gan, data=data)
    assert counts(step) == (1, 8)


def test_batches_that_stay_of_another_size_are_captured_anew():
    step = agree(gan, data=[*batches(6), *batches(20, size=4)])
    assert step.graph.captures == 2
    assert step.captured


def test_inference_is_captured_too():
    model = net(out=3)
    step = captured_step(lambda batch: {"scores": model(batch).softmax(1), "names": ["a"]}, model, mode="infer")
    data = batches()
    with torch.no_grad():
        outputs = [step(batch) for batch in data]
        for output, batch in zip(outputs, data, strict=True):
            torch.testing.assert_close(output["scores"], model(batch).softmax(1))
    assert counts(step) == (1, STEPS - 3)


# --- what changes between steps -------------------------------------------------------------------------------


def weight(at, loop):
    loop.rest.weight = 1.0 if at < 6 else 0.5


def frozen(at, loop):
    loop.rest.model[0].requires_grad_(at < 6)


def other_layer(at, loop):
    if at == 6:
        torch.manual_seed(5)
        loop.rest.model[2].weight = nn.Parameter(torch.randn(1, 16))


def other_memory(at, loop):
    if at == 6:
        loop.rest.model[0].weight.data = loop.rest.model[0].weight.data + 0.1


def decay(at, loop):
    if at == 6:
        loop.optimizers[0].param_groups[0]["weight_decay"] = 0.5


def loaded(at, loop):
    if at == 6:
        saved = copy.deepcopy(loop.optimizers[0].state_dict())
        for state in saved["state"].values():
            state["exp_avg"].zero_()
        loop.optimizers[0].load_state_dict(saved)


def other_method(at, loop):
    if at == 6:
        loop.rest.loss_of = lambda batch: 3 * loop.rest.model(batch).square().mean()


def of_class(at, loop):
    Trainer.scale = 1.0 if at < 6 else 3.0
    Trainer.loss_of = lambda self, batch: Trainer.scale * self.model(batch).square().mean()


def written(at, loop):
    if at == 6:
        with torch.no_grad():
            loop.rest.model[0].weight.mul_(0.5)


@pytest.mark.parametrize(
    ("change", "captures"),
    [
        (weight, 2),
        (frozen, 2),
        (other_layer, 1),
        (other_memory, 2),
        (decay, 2),
        (loaded, 2),
        (other_method, 2),
        (written, 1),
    ],
)
def test_a_change_between_steps_is_followed(change, captures):
    step = agree(trainer, change=change, data=batches(20))
    assert step.graph.captures >= captures
    assert not step.refusal
    assert step.captured


def test_a_class_attribute_is_seen(monkeypatch):
    monkeypatch.setattr(Trainer, "scale", 1.0, raising=False)
    monkeypatch.setattr(Trainer, "loss_of", Trainer.loss_of)
    assert agree(trainer, change=of_class).graph.replays


# --- where a number may be that a step reads ------------------------------------------------------------------

FACTOR = 1.0
OPTIONS = types.SimpleNamespace(factor=1.0)
TABLE = {"factor": [1.0, (1.0, 2.0)]}
OTHERS = types.ModuleType("others_of_this_test")
OTHERS.FACTOR = 1.0


def factor_of_global():
    return FACTOR


class Slotted:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1.0

    @property
    def doubled(self):
        return 2 * self.factor


class OfPackage(collections.UserDict):
    """Its base reads an attribute that no code here names."""


class Holder:
    factor = 1.0

    def __init__(self):
        self.of_object = 1.0
        self.inner = Slotted()
        self.calls = [lambda: self.of_object]

    def first_call(self):
        return self.calls[0]()

    def __call__(self):
        return self.of_object

    def by_text(self):
        return getattr(self, "of_" + "object") if hasattr(self, "of_object") else 0.0


class ByText:
    def __init__(self):
        self.factor_of_loss = 1.0

    def read(self, end="loss"):
        return getattr(self, f"factor_of_{end}")


HOLDER, BY_TEXT = Holder(), ByText()


def with_default(values={"factor": 1.0}):  # noqa: B006 - a default that is changed
    return values["factor"]


def with_attribute():
    return with_attribute.factor


with_attribute.factor = 1.0


@torch.no_grad()
def decorated():
    return OPTIONS.factor


@functools.lru_cache
def cached():
    return OPTIONS


partial = functools.partial(lambda factor: factor["value"], factor={"value": 1.0})


def imported_inside():
    import others_of_this_test

    return others_of_this_test.FACTOR


def set_global(value):
    globals()["FACTOR"] = value


def set_class(value):
    Holder.factor = value


READINGS = {
    "global": (factor_of_global, set_global),
    "namespace": (lambda: OPTIONS.factor, lambda value: setattr(OPTIONS, "factor", value)),
    "list in a dictionary": (lambda: TABLE["factor"][0], lambda value: TABLE["factor"].__setitem__(0, value)),
    "tuple": (lambda: TABLE["factor"][1][0], lambda value: TABLE["factor"].__setitem__(1, (value, 2.0))),
    "attribute": (lambda: HOLDER.of_object, lambda value: setattr(HOLDER, "of_object", value)),
    "called object": (HOLDER, lambda value: setattr(HOLDER, "of_object", value)),
    "by its text": (HOLDER.by_text, lambda value: setattr(HOLDER, "of_object", value)),
    "by a text that is computed": (BY_TEXT.read, lambda value: setattr(BY_TEXT, "factor_of_loss", value)),
    "function in a list": (HOLDER.first_call, lambda value: setattr(HOLDER, "of_object", value)),
    "class": (lambda: HOLDER.factor, set_class),
    "slot": (lambda: HOLDER.inner.factor, lambda value: setattr(HOLDER.inner, "factor", value)),
    "property": (lambda: HOLDER.inner.doubled, lambda value: setattr(HOLDER.inner, "factor", value)),
    "default": (with_default, lambda value: with_default.__defaults__[0].update(factor=value)),
    "attribute of a function": (with_attribute, lambda value: setattr(with_attribute, "factor", value)),
    "decorated": (decorated, lambda value: setattr(OPTIONS, "factor", value)),
    "cached": (lambda: cached().factor, lambda value: setattr(OPTIONS, "factor", value)),
    "partial": (partial, lambda value: partial.keywords["factor"].update(value=value)),
    "import in a function": (imported_inside, lambda value: setattr(OTHERS, "FACTOR", value)),
    "module": (lambda: OTHERS.FACTOR, lambda value: setattr(OTHERS, "FACTOR", value)),
}


@pytest.mark.parametrize("reading", list(READINGS))
def test_a_number_that_changes_is_followed_wherever_it_is(reading, monkeypatch):
    monkeypatch.setitem(sys.modules, OTHERS.__name__, OTHERS)
    read, write = READINGS[reading]

    def make():
        write(1.0)
        model = net()
        optimizer = sgd(model)

        def step(batch):
            loss = read() * model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model], [optimizer])

    step = agree(make, change=lambda at, loop: write(1.0 if at < 6 else 2.0), data=batches(16))
    assert step.graph.captures == 2, step.refusal or step.patience.reason


def test_an_array_of_numpy_is_followed():
    weights = np.ones(3)

    def make():
        weights[:] = 1.0
        model = net()
        optimizer = sgd(model)

        def step(batch):
            loss = float(weights[1]) * model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model], [optimizer])

    def change(at, loop):
        weights[1] = 1.0 if at < 6 else 2.0

    assert agree(make, change=change, data=batches(16)).graph.captures == 2


# --- what is refused ------------------------------------------------------------------------------------------


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


def takes_the_next(state, model, batch, loss):
    return loss * next(state.numbers)


REFUSED = [
    (counts_up, {"steps": 0}, "the step changes .*steps each time, and a replay runs no Python"),
    (updates_every_third_step, {"steps": 0}, "the step changes .*steps each time"),
    (keeps_losses, {"losses": []}, "the step changes .*losses"),
    (reads, {}, r"the step reads a value on the host \(test_graphed_own_step.py:\d+\)"),
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
    (takes_the_next, {"numbers": iter([1.0, 2.0, 3.0] * STEPS)}, "reaches the iterator .*numbers"),
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
        hidden = [torch.ones(8)]
        lookup = {"get": hidden.__iter__().__next__}
        offset = lookup["get"]()
        holder = types.MappingProxyType({"offset": offset})

        def step(batch):
            return model(batch + holder["offset"]).square().mean()

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
    from advisor.runtime.step import raise_refusal

    loop = refused(reads)()
    own = OwnStep(loop.step, loop.modules[0], StepPlan(mode="train", device="cpu"))
    step = GraphedOwnStep(own, RecordedGraph(), refuse=raise_refusal)
    with pytest.raises(RefusedError, match="the step cannot be captured in a CUDA graph: the step reads a value"):
        list(map(step, batches(5)))
