"""A captured step notices the model's numbers that code beside its class's own methods reads."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from graphed_steps import Net, agree, batches, both, of_model
from torch import nn

# --- methods behind a decorator -------------------------------------------------------------------------------


def with_its_name(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def without_its_name(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


class Bound:
    """A decorator that is an object, bound to a model as a method is."""

    def __init__(self, function):
        self.function = function

    def __get__(self, owner, kind=None):
        return functools.partial(self.function, owner)


DECORATORS = {
    "no_grad": torch.no_grad(),
    "autocast": torch.autocast("cpu", enabled=False),
    "compiler.disable": torch.compiler.disable,
    "compile": torch.compile(backend="eager"),
    "wraps": with_its_name,
    "no wraps": without_its_name,
    "twice": lambda function: with_its_name(without_its_name(function)),
    "object": Bound,
    "partial method": functools.partialmethod,
}


def decorated_method(decorate):
    class Decorated(Net):
        factor = decorate(lambda self: self.weight)

        def forward(self, x):
            return self.factor() * super().forward(x)

    return Decorated


def decorated_forward(decorate):
    class Decorated(Net):
        forward = decorate(lambda self, x: self.weight * Net.forward(self, x))

    return Decorated


def agrees_when_the_weight_changes(prepare, loss=of_model):
    """Hold that a captured step captures anew when ``model.weight`` changes, and computes what a plain loop does."""

    def with_weight(model):
        model.weight = 1.0
        prepare(model)

    def change(at, model, optimizer):
        model.weight = 1.0 if at < 6 else 0.25

    found, step = both(change, prepare=with_weight, loss=loss)
    agree(found)
    assert step.graph.captures == 2


@pytest.mark.parametrize("name", DECORATORS)
def test_a_number_that_a_decorated_method_reads_is_noticed(name):
    kind = decorated_method(DECORATORS[name])
    agrees_when_the_weight_changes(lambda model: setattr(model, "__class__", kind))


@pytest.mark.parametrize("name", sorted(DECORATORS.keys() - {"no_grad"}))
def test_a_number_that_a_decorated_forward_reads_is_noticed(name):
    kind = decorated_forward(DECORATORS[name])
    agrees_when_the_weight_changes(lambda model: setattr(model, "__class__", kind))


def test_a_step_whose_decorated_method_counts_is_not_captured():
    class Counting(Net):
        @torch.compiler.disable
        def note(self):
            self.calls += 1

        def forward(self, x):
            self.note()
            return super().forward(x)

    models: list[nn.Module] = []

    def prepare(model):
        model.__class__, model.calls = Counting, 0
        models.append(model)

    with pytest.warns(UserWarning, match=r"without a CUDA graph.*a number changed that the model"):
        found, step = both(data=batches(60), prepare=prepare)
    agree(found)
    assert step.graph.captures == 0
    assert [model.calls for model in models] == [60, 60]


class Stages(Net):
    def forward(self, x):
        return super().forward(x) * getattr(self, f"{'scale'}")


class Trainer:
    steps = 0

    def loss(self, model, batch):
        return of_model(model, batch)


def test_an_attribute_that_nothing_reads_may_change_though_other_names_are_made():
    trainer = Trainer()

    def change(at, model, optimizer):
        trainer.steps += 1

    found, step = both(change, prepare=lambda model: setattr(model, "__class__", Stages), loss=trainer.loss)
    agree(found)
    assert step.graph.captures == 1, step.patience.reason


# --- other code that gets the model ---------------------------------------------------------------------------


def weighted(self, x):
    return self.weight * Net.forward(self, x)


def weight_of(model):
    return model.weight


class Holder:
    def __init__(self, model):
        self.model = model

    def weight_now(self):
        return self.model.weight


class ByFunction(Net):
    def forward(self, x):
        return weight_of(self) * super().forward(x)


class ByObject(Net):
    def forward(self, x):
        return Holder(self).weight_now() * super().forward(x)


class ByTable(Net):
    def forward(self, x):
        return self.table["weight"](self) * super().forward(x)


class ByNamespace(Net):
    def forward(self, x):
        return vars(self)["weight"] * super().forward(x)


class ByDictionary(Net):
    def forward(self, x):
        return self.__dict__["weight"] * super().forward(x)


class OfRoot(nn.Linear):
    def forward(self, x):
        return self.root[0].weight * super().forward(x)


def patched_by_a_method(model):
    model.forward = types.MethodType(weighted, model)


def patched_by_a_function(model):
    forward = model.forward
    model.forward = lambda x: model.weight * forward(x)


def patched_by_a_partial(model):
    model.forward = functools.partial(weighted, model)


def read_by_a_layer(model):
    model.last.__class__, model.last.root = OfRoot, [model]


def of_class(kind):
    def prepare(model):
        model.__class__, model.table = kind, {"weight": weight_of}

    return prepare


@pytest.mark.parametrize(
    "prepare",
    [
        *(of_class(kind) for kind in (ByFunction, ByObject, ByTable, ByNamespace, ByDictionary)),
        patched_by_a_method,
        patched_by_a_function,
        patched_by_a_partial,
        read_by_a_layer,
    ],
)
def test_a_number_of_the_model_is_noticed_whoever_reads_it(prepare):
    agrees_when_the_weight_changes(prepare)


@pytest.mark.parametrize("weight", [weight_of, lambda model: model.weight])
def test_a_number_of_the_model_that_the_loss_reads_is_noticed(weight):
    agrees_when_the_weight_changes(lambda model: None, lambda model, batch: weight(model) * of_model(model, batch))


def test_a_number_in_an_object_that_a_function_gets_is_noticed():
    class Options:
        weight = 1.0

    options = Options()

    def change(at, model, optimizer):
        options.weight = 1.0 if at < 6 else 0.25

    found, step = both(change, loss=lambda model, batch: weight_of(options) * of_model(model, batch))
    agree(found)
    assert step.graph.captures == 2


def test_a_number_that_nobody_reads_does_not_end_a_graph():
    def change(at, model, optimizer):
        model.batches_so_far = at

    found, step = both(change)
    agree(found)
    assert step.graph.captures == 1


# --- the user's functions inside those of packages ------------------------------------------------------------

OPTIONS = types.SimpleNamespace(weight=1.0)


@torch.compile(backend="eager")
def compiled(value):
    return OPTIONS.weight * value


@torch.no_grad()
def without_gradients(value):
    return OPTIONS.weight


@torch.compiler.disable
def not_compiled(value):
    return OPTIONS.weight * value


@functools.lru_cache
def options():
    return OPTIONS


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return OPTIONS.weight * gradient


@torch.library.custom_op("test_graphed_names::scaled", mutates_args=())
def scaled(value: torch.Tensor) -> torch.Tensor:
    return OPTIONS.weight * value


scaled.register_autograd(lambda ctx, gradient: OPTIONS.weight * gradient)
of_each = torch.vmap(lambda value: OPTIONS.weight * value)
slope = torch.func.grad(lambda value: (OPTIONS.weight * value).sum())
twice_wrapped = torch.no_grad()(functools.lru_cache(lambda: OPTIONS))

WRAPPED = {
    "compile": compiled,
    "no_grad": lambda loss: without_gradients(loss) * loss,
    "compiler.disable": not_compiled,
    "lru_cache": lambda loss: options().weight * loss,
    "autograd function": Scaled.apply,
    "a class's apply": lambda loss: Scaled.apply(loss),  # noqa: PLW0108 - the class is read each time
    "custom operator": scaled,
    "vmap": lambda loss: of_each(loss[None])[0],
    "grad": lambda loss: slope(torch.ones(2)).mean().detach() * loss,
    "two wrappers": lambda loss: twice_wrapped().weight * loss,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_number_that_a_wrapped_function_reads_is_noticed(name):
    def change(at, model, optimizer):
        OPTIONS.weight = 1.0 if at < 6 else 0.25

    wrapped = WRAPPED[name]
    found, step = both(change, loss=lambda model, batch: wrapped(of_model(model, batch)))
    agree(found)
    assert step.graph.captures == 2


# --- in a module that a function is given -----------------------------------------------------------------------


class Strengthened(Net):
    weight = 1.0

    def __init__(self):
        super().__init__()
        self.strength = 1.0

    def forward(self, x):
        return strengthened(self, super().forward(x))


def strengthened(module, x):
    return module.strength * x


def weighed_by_the_model(model, batch):
    return model.weight * of_model(model, batch)


@pytest.mark.parametrize("name", ["strength", "weight"])
@pytest.mark.parametrize("of_class", [False, True])
def test_a_number_is_found_in_a_module_that_is_given_to_a_function(name, of_class, monkeypatch):
    monkeypatch.setattr("graphed_steps.Net", Strengthened)

    def change(at, model, optimizer):
        if of_class:
            monkeypatch.setattr(Strengthened, name, 1.0 if at < 8 else 0.25, raising=False)
            vars(model).pop(name, None)
        else:
            setattr(model, name, 1.0 if at < 8 else 0.25)

    found, step = both(change, loss=weighed_by_the_model)
    agree(found)
    assert step.graph.replays
