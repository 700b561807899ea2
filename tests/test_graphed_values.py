"""Python values, losses and hooks that a captured step compares before each replay."""

import collections
import functools
import types
from dataclasses import dataclass

import pytest
import torch
from graphed_steps import STEPS, Net, agree, batches, both, graphed, net, of_model, plain, run, sgd
from torch import nn

from advisor.step.nested import host_places, values_at


def weighted(model, batch):
    return batch["weight"] * nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def named(weights):
    return [{"x": x, "y": y, "weight": weight} for (x, y), weight in zip(batches(len(weights)), weights, strict=True)]


def test_a_python_value_of_the_batch_is_part_of_what_was_captured():
    found, step = both(data=named([1.0] * 6 + [0.3] * 8), loss=weighted)
    agree(found)
    assert step.graph.captures == 2


def test_a_value_that_changes_in_each_batch_runs_eagerly_and_says_so():
    with pytest.warns(UserWarning, match="without a CUDA graph.*Python values of the batches"):
        found, step = both(data=named([float(at) for at in range(60)]), loss=weighted)
    agree(found)
    assert step.graph.captures == 0


@dataclass
class Options:
    weight: float = 1.0


class Weighted:
    """A loss with its weight in an attribute, in options, and a count that it does not read."""

    def __init__(self):
        self.weight, self.options, self.calls = 1.0, Options(), 0

    def __call__(self, model, batch):
        return self.weight * self.part(model, batch)

    def part(self, model, batch):
        return self.options.weight * of_model(model, batch)

    def loss(self, model, batch):
        return self(model, batch)


WEIGHT = 1.0


def of_global(model, batch):
    return WEIGHT * of_model(model, batch)


def closed_over():
    weight = 1.0

    def loss(model, batch):
        return weight * of_model(model, batch)

    def change(to):
        nonlocal weight
        weight = to

    return loss, change


def weights():
    """Losses with a weight, and how a loop changes it."""
    attribute, options, method = Weighted(), Weighted(), Weighted()
    space, table = types.SimpleNamespace(weight=1.0), {"weight": 1.0}
    inner, change_inner = closed_over()
    yield "attribute", attribute, lambda to: setattr(attribute, "weight", to)
    yield "options", options, lambda to: setattr(options.options, "weight", to)
    yield "method", method.loss, lambda to: setattr(method, "weight", to)
    yield "global", of_global, lambda to: globals().update(WEIGHT=to)
    yield "closure", inner, change_inner
    yield (
        "namespace",
        lambda model, batch: space.weight * of_model(model, batch),
        lambda to: setattr(space, "weight", to),
    )
    yield (
        "dictionary",
        lambda model, batch: table["weight"] * of_model(model, batch),
        lambda to: table.update(weight=to),
    )
    yield "partial", functools.partial(inner), change_inner


@pytest.mark.parametrize(("loss", "set_weight"), [pytest.param(*rest, id=name) for name, *rest in weights()])
def test_a_weight_of_the_loss_is_noticed(loss, set_weight):
    found, step = both(lambda at, model, optimizer: set_weight(1.0 if at < 6 else 0.25), loss=loss)
    agree(found)
    assert step.graph.captures == 2


@pytest.mark.parametrize(("name", "value"), [("reduction", "sum"), ("ignore_index", 1), ("label_smoothing", 0.3)])
def test_an_option_of_a_loss_of_pytorchs_is_noticed(name, value):
    criterion = nn.CrossEntropyLoss()
    usual = getattr(criterion, name)
    found, step = both(
        lambda at, model, optimizer: setattr(criterion, name, usual if at < 6 else value),
        loss=lambda model, batch: 0.1 * criterion(model(batch[0]), batch[1]),
    )
    agree(found)
    assert step.graph.captures == 2


def test_an_option_of_a_layer_of_pytorchs_is_noticed():
    pool = nn.AvgPool1d(2)

    def change(at, model, optimizer):
        pool.count_include_pad = at < 6

    pool.padding = (1,)
    found, step = both(change, loss=lambda model, batch: pool(model(batch[0])).square().mean())
    agree(found)
    assert step.graph.captures == 2


def test_a_number_that_the_loss_does_not_read_costs_nothing():
    loss = Weighted()

    def change(at, model, optimizer):
        loss.calls += 1

    assert both(change, loss=loss)[1].graph.captures == 1


def test_a_module_is_watched_as_a_loss():
    class Scaled(nn.Module):
        weight = 1.0

        def __init__(self):
            super().__init__()
            self.weight = 1.0

        def forward(self, output, target):
            return self.weight * nn.functional.cross_entropy(output, target)

    model, criterion = net(), Scaled()
    step = graphed(model, sgd(model.parameters()), criterion)
    before = [step(batch).item() for batch in batches(6)][-1]
    criterion.weight = 0.0
    assert step(batches(6)[-1]).item() == 0.0 != before


def test_a_model_that_counts_its_calls_is_not_captured():
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) / self.calls

    model = Counting()
    step = graphed(model, sgd(model.parameters()))
    with pytest.warns(UserWarning, match="a number changed that the model or the loss reads"):
        run(step, batches(60))
    assert model.calls == 60
    assert step.graph.captures == 0


class Metric:
    """Counts what it is given; ``started`` changes too, and nobody reads it."""

    def __init__(self):
        self.count, self.started = 0, 0.0

    def add(self, x):
        self.count += len(x)


class Keeping(Net):
    """A model that keeps something of each call; ``kept`` is how many it has."""

    def __init__(self):
        super().__init__()
        self.seen, self.queue, self.table = [], collections.deque(maxlen=2), {}
        self.metric, self.counts = Metric(), {"calls": [0]}


class KeepsOutputs(Keeping):
    kept = property(lambda self: len(self.seen))

    def forward(self, x):
        self.seen.append(x.detach())
        return super().forward(x)


class KeepsLast(Keeping):
    """The last two outputs, of which the next one is computed."""

    kept = property(lambda self: 30 * len(self.queue))

    def forward(self, x):
        output = super().forward(x)
        self.queue.append(output.detach().mean())
        return output + sum(self.queue)


class KeepsByName(Keeping):
    kept = property(lambda self: len(self.table))

    def forward(self, x):
        self.table[f"call {len(self.table)}"] = 1
        return super().forward(x)


class KeepsCount(Keeping):
    kept = property(lambda self: self.counts["calls"][0])

    def forward(self, x):
        self.counts["calls"][0] += 1
        return super().forward(x)


class KeepsMetric(Keeping):
    kept = property(lambda self: self.metric.count // 5)

    def forward(self, x):
        self.metric.add(x)
        return super().forward(x)


@pytest.mark.parametrize("kind", Keeping.__subclasses__())
def test_a_model_that_keeps_something_of_each_call_is_not_captured(kind):
    model = kind()
    step = graphed(model, sgd(model.parameters()))
    with pytest.warns(UserWarning, match="without a CUDA graph. Last reason: a (list|number|tensor)"):
        run(step, batches(60))
    assert step.graph.captures == 0
    assert model.kept == 60


class Defaults:
    power = 1


SETTINGS = {"loss": {"weight": 1.0}, "gates": [True]}
HOLDER = Metric()
HOLDER.count = 1
MODULE = types.ModuleType("settings_of_a_script")
MODULE.__file__ = __file__
MODULE.share = 1.0


def by_settings(model, batch):
    loss = SETTINGS["loss"]["weight"] * of_model(model, batch) * HOLDER.count
    return shared(loss if SETTINGS["gates"][0] else 2 * loss)


def shared(loss):
    return MODULE.share * loss**Defaults.power


@pytest.mark.parametrize(
    "change",
    [
        lambda value: SETTINGS["loss"].update(weight=value),
        lambda value: SETTINGS["gates"].__setitem__(0, value == 1),
        lambda value: setattr(HOLDER, "count", value),
        lambda value: setattr(Defaults, "power", value),
        lambda value: setattr(MODULE, "share", value),
    ],
    ids=["nested dictionary", "list", "object", "class in a function", "module in a function"],
)
def test_a_value_deep_in_what_the_loss_reads_is_noticed(change):
    def at_step(at, model, optimizer):
        HOLDER.started = float(at)  # nobody reads it
        change(1 if at < 6 else 3)

    found, step = both(at_step, loss=by_settings)
    change(1)
    agree(found)
    assert step.graph.captures == 2


def carried_in_a_list():
    memory = [torch.zeros(3)]

    def loss(model, batch):
        output = model(batch[0]) + memory[0]
        memory[0] = output.detach().mean(0)
        return nn.functional.cross_entropy(output, batch[1])

    return loss


def test_a_loss_that_carries_a_tensor_in_a_list_is_not_captured():
    losses = {}
    for is_captured in (False, True):
        model, loss = net(), carried_in_a_list()
        step = (
            graphed(model, sgd(model.parameters()), loss)
            if is_captured
            else plain(model, sgd(model.parameters()), loss)
        )
        losses[is_captured] = run(step, batches())
    assert step.graph.captures == 0
    assert torch.stack(losses[True]).tolist() == pytest.approx(torch.stack(losses[False]).tolist(), rel=1e-5)


def test_a_teacher_in_the_loss_is_watched():
    teacher = nn.Sequential(nn.Dropout(0.0), net())
    frozen = list(teacher.parameters())

    def loss(model, batch):
        return of_model(model, batch) + (model(batch[0]) - teacher(batch[0]).detach()).square().mean()

    def change(at, model, optimizer):
        if at == 0:
            teacher.load_state_dict({f"1.{name}": value for name, value in net().state_dict().items()})
            teacher.train()
        if at == 5:
            teacher.eval()
        if at == 10:
            frozen[0].data = frozen[0].detach() * 2

    found, step = both(change, loss=loss)
    agree(found)
    assert step.graph.replays == 2


def test_a_list_that_is_filled_anew_in_each_step_costs_no_capture():
    class Auxiliary(Keeping):
        def forward(self, x):
            self.seen.clear()
            self.seen.append(x.square().mean())
            return super().forward(x) + self.seen[0]

    def made():
        torch.manual_seed(0)
        return Auxiliary()

    one, other = made(), made()
    step, usual = graphed(one, sgd(one.parameters())), plain(other, sgd(other.parameters()), of_model)
    for batch in batches():
        assert step(batch).item() == pytest.approx(usual(batch).item(), rel=1e-5)
    assert step.graph.captures == 1


def test_a_hook_of_the_users_own_is_called_in_each_step():
    model, seen = net(), []
    model.first.register_forward_hook(lambda *_: seen.append(1))
    step = graphed(model, sgd(model.parameters()))
    with pytest.warns(UserWarning, match="a Linear has the hook <lambda>, which a graph would leave out"):
        run(step, batches(60))
    assert len(seen) == 60


def test_a_hook_that_comes_later_and_goes_again():
    model, seen = net(), []
    step = graphed(model, sgd(model.parameters()))
    for batch in batches(6):
        step(batch)
    handle = model.first.register_forward_hook(lambda *_: seen.append(1))
    for batch in batches(6):
        step(batch)
    handle.remove()
    for batch in batches(30):
        step(batch)
    assert len(seen) == 6
    assert step.captured


@pytest.mark.parametrize(
    "register",
    [
        lambda model, hook: torch.nn.modules.module.register_module_forward_hook(hook),
        lambda model, hook: model.last.register_full_backward_hook(hook),
        lambda model, hook: model.last.weight.register_hook(lambda _: hook(model.last)),
        lambda model, hook: model.last.weight.register_post_accumulate_grad_hook(lambda _: hook(model.last)),
    ],
    ids=["of all layers", "of the backward pass", "of a gradient", "of a gradient that is added up"],
)
def test_other_hooks_that_come_later_are_called(register):
    model, seen = net(), []
    step = graphed(model, sgd(model.parameters()))
    run(step, batches(6))
    handle = register(model, lambda module, *_: seen.append(module) if module is model.last else None)
    try:
        run(step, batches(6))
    finally:
        handle.remove()
    assert len(seen) == 6


def test_hooks_of_the_optimizer_are_called():
    model, seen = net(), []
    optimizer = sgd(model.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    step = graphed(model, optimizer)
    for batch in batches():
        step(batch)
    assert len(seen) == STEPS
    assert step.captured


def test_a_step_that_no_graph_can_hold_any_more_goes_on_eagerly_and_says_so():
    def change(at, model, optimizer):
        model.norm.momentum = 0.1 if at < 8 else None  # a mean over all steps, for which the host counts them

    with pytest.warns(UserWarning, match="without a CUDA graph.*cannot be captured any more: operation not permitted"):
        found, step = both(change, data=batches(70))
    agree(found)
    assert (step.graph.replays, step.captured) == (5, False)


def test_what_cannot_be_compared_is_never_replayed():
    class Anything:
        pass

    data = [(*batch, Anything()) for batch in batches(6)]
    found, step = both(data=data)
    agree(found)
    assert step.graph.captures == 0


def test_tensors_that_stay_on_the_host_are_compared_by_value():
    device = torch.device("meta")
    batch = [torch.ones(2, device="meta"), torch.tensor([3, 2])]
    assert host_places(batch, device) == (1,)
    assert values_at(batch, (1,)) == [[3, 2]]
    assert values_at(batch, ()) == []
    assert values_at([torch.ones(70_000)], (0,)) != values_at([torch.ones(70_000)], (0,))


@pytest.mark.parametrize("hides", [False, True])
def test_a_loss_that_a_class_holds_is_noticed_when_another_takes_its_place(hides):
    class Trainer:
        criterion = nn.CrossEntropyLoss()

        def loss(self, model, batch):
            return self.criterion(model(batch[0]), batch[1])

    def change(at, model, optimizer):
        criterion = nn.CrossEntropyLoss() if at < 6 else nn.MultiMarginLoss()
        if at in (0, 6):
            vars(trainer).clear()
            (trainer if hides and at else Trainer).criterion = criterion

    trainer = Trainer()
    found, step = both(change, loss=trainer.loss)
    agree(found)
    assert step.graph.captures == 2
