"""Where a captured step finds the numbers and objects that the loss and the model read, however they are written."""

from __future__ import annotations

import contextvars
import enum
import functools
import importlib
import os
import random
import sys
import threading
import types

import numpy as np
import pytest
from graphed_steps import Net, agree, batches, both, of_model, sgd
from torch import nn

TEMPERATURE = 1.0


class Settings:
    """Options of which there is one object, which its class holds."""

    weight = 1.0
    only: Settings | None = None

    @classmethod
    def get(cls):
        cls.only = cls.only or cls()
        return cls.only


class Derived(Settings):
    pass


class Slots:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = 1.0


class Weighing:
    """An object that is called by operators; a later weight of its own hides that of its class."""

    weight = 1.0

    def __float__(self):
        return self.weight

    def __rmul__(self, other):
        return other * self.weight

    @property
    def same(self):
        return self.weight


class Stage(enum.Enum):
    FIRST = 1.0
    SECOND = 0.25


class Held:
    """An object whose property reads another attribute, and whose function may be replaced."""

    def __init__(self):
        self.stage, self.count, self.loss = Stage.FIRST, 0, nn.functional.cross_entropy

    @property
    def weight(self):
        return 1.0 if self.count == 0 else 0.25


def in_a_module(monkeypatch):
    module = types.ModuleType("options_of_a_test")
    module.weight, module.__file__ = 1.0, __file__
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def loss(model, batch):
        import options_of_a_test

        return options_of_a_test.weight * of_model(model, batch)

    return loss, lambda to: setattr(module, "weight", to)


def in_a_name_from_a_module(monkeypatch):
    _, change = in_a_module(monkeypatch)

    def loss(model, batch):
        from options_of_a_test import weight

        return weight * of_model(model, batch)

    return loss, change


def in_the_environment(monkeypatch):
    monkeypatch.setenv("WEIGHT_OF_A_TEST", "1.0")

    def loss(model, batch):
        return float(os.environ["WEIGHT_OF_A_TEST"]) * of_model(model, batch)

    return loss, lambda to: monkeypatch.setenv("WEIGHT_OF_A_TEST", str(to))


def by_getenv(monkeypatch):
    def loss(model, batch):
        return float(os.getenv("WEIGHT_OF_A_TEST", "1.0")) * of_model(model, batch)

    return loss, lambda to: monkeypatch.setenv("WEIGHT_OF_A_TEST", str(to))


def in_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "1.0"])

    def loss(model, batch):
        return float(sys.argv[1]) * of_model(model, batch)

    return loss, lambda to: sys.argv.__setitem__(1, str(to))


def in_a_default(monkeypatch):
    def loss(model, batch, options={"weight": 1.0}):  # noqa: B006
        return options["weight"] * of_model(model, batch)

    return loss, lambda to: loss.__defaults__[0].update(weight=to)


def in_a_keyword(monkeypatch):
    def loss(model, batch, *, weight=1.0):
        return weight * of_model(model, batch)

    return loss, lambda to: loss.__kwdefaults__.update(weight=to)


def on_the_function(monkeypatch):
    def loss(model, batch):
        return loss.weight * of_model(model, batch)

    loss.weight = 1.0
    return loss, lambda to: setattr(loss, "weight", to)


def in_a_partial(monkeypatch):
    weighted = functools.partial(lambda value, weight: weight * value, weight=1.0)

    def loss(model, batch):
        return weighted(of_model(model, batch))

    return loss, lambda to: weighted.keywords.update(weight=to)


def in_a_class(monkeypatch):
    monkeypatch.setattr(Settings, "weight", 1.0)

    def loss(model, batch):
        return Derived.weight * of_model(model, batch)

    return loss, lambda to: monkeypatch.setattr(Settings, "weight", to)


def in_an_only_object(monkeypatch):
    monkeypatch.setattr(Settings, "only", None)

    def loss(model, batch):
        return Settings.get().weight * of_model(model, batch)

    return loss, lambda to: setattr(Settings.get(), "weight", to)


def in_slots(monkeypatch):
    options = Slots()

    def loss(model, batch):
        return options.weight * of_model(model, batch)

    return loss, lambda to: setattr(options, "weight", to)


def in_an_enumeration(monkeypatch):
    held = Held()

    def loss(model, batch):
        return (1.0 if held.stage is Stage.FIRST else 0.25) * of_model(model, batch)

    return loss, lambda to: setattr(held, "stage", Stage(to))


def in_a_property(monkeypatch):
    held = Held()

    def loss(model, batch):
        return held.weight * of_model(model, batch)

    return loss, lambda to: setattr(held, "count", int(to != 1.0))


def in_another_function(monkeypatch):
    held = Held()

    def quarter(output, target):
        return 0.25 * nn.functional.cross_entropy(output, target)

    def loss(model, batch):
        return held.loss(model(batch[0]), batch[1])

    return loss, lambda to: setattr(held, "loss", nn.functional.cross_entropy if to == 1.0 else quarter)


def in_another_dictionary(monkeypatch):
    held = types.SimpleNamespace(options={"weight": 1.0})
    options = {1.0: held.options, 0.25: {"weight": 0.25}}

    def loss(model, batch):
        return held.options["weight"] * of_model(model, batch)

    return loss, lambda to: setattr(held, "options", options[to])


def deep_inside(monkeypatch):
    options = {"train": {"loss": {"parts": {"main": {"terms": {"weight": 1.0}}}}}}

    def loss(model, batch):
        return options["train"]["loss"]["parts"]["main"]["terms"]["weight"] * of_model(model, batch)

    return loss, lambda to: options["train"]["loss"]["parts"]["main"]["terms"].update(weight=to)


def in_a_context_variable(monkeypatch):
    weight = contextvars.ContextVar("weight", default=1.0)

    def loss(model, batch):
        return weight.get() * of_model(model, batch)

    return loss, weight.set


def in_a_threads_own_names(monkeypatch):
    own = threading.local()
    own.weight = 1.0

    def loss(model, batch):
        return own.weight * of_model(model, batch)

    return loss, lambda to: setattr(own, "weight", to)


def by_its_name(monkeypatch):
    monkeypatch.setitem(globals(), "TEMPERATURE", 1.0)

    def loss(model, batch):
        return globals()["TEMPERATURE"] * of_model(model, batch)

    return loss, lambda to: monkeypatch.setitem(globals(), "TEMPERATURE", to)


def in_an_array(monkeypatch):
    weights = np.ones(4)

    def loss(model, batch):
        return float(weights[0]) * of_model(model, batch)

    return loss, lambda to: weights.__setitem__(0, to)


def in_a_number_of_numpys(monkeypatch):
    options = {"weight": np.float64(1.0)}

    def loss(model, batch):
        return float(options["weight"]) * of_model(model, batch)

    return loss, lambda to: options.update(weight=np.float64(to))


def in_a_config_of_a_package(monkeypatch):
    config = pytest.importorskip("omegaconf").OmegaConf.create({"loss": {"weight": 1.0}})

    def loss(model, batch):
        return config.loss.weight * of_model(model, batch)

    return loss, lambda to: setattr(config.loss, "weight", to)


def in_an_attribute_that_hides_the_class_s(monkeypatch):
    options = Weighing()

    def loss(model, batch):
        return options.same * of_model(model, batch)

    def change(to):
        vars(options).clear()
        vars(options).update({"weight": to} if to != 1.0 else {})

    return loss, change


def as_a_float(monkeypatch):
    options = Weighing()

    def loss(model, batch):
        return float(options) * of_model(model, batch)

    return loss, lambda to: setattr(options, "weight", to)


def by_an_operator(monkeypatch):
    options = Weighing()

    def loss(model, batch):
        return of_model(model, batch) * options

    return loss, lambda to: setattr(options, "weight", to)


def by_a_name_that_is_made(monkeypatch):
    options, part = Weighing(), "main"
    options.weight_main = 1.0

    def loss(model, batch):
        return getattr(options, f"weight_{part}") * of_model(model, batch)

    return loss, lambda to: setattr(options, "weight_main", to)


def by_a_method_of_pythons(monkeypatch):
    weight = contextvars.ContextVar("weight", default=1.0)
    weight_now = weight.get

    def loss(model, batch):
        return weight_now() * of_model(model, batch)

    return loss, weight.set


def in_a_config_that_is_no_mapping(monkeypatch):
    config = pytest.importorskip("mmengine").Config({"loss": {"weight": 1.0}})

    def loss(model, batch):
        return config.loss.weight * of_model(model, batch)

    return loss, lambda to: setattr(config.loss, "weight", to)


def installed(monkeypatch, folder):
    """A package that has a weight, and functions that give and set it."""
    text = "WEIGHT = 1.0\n\n\ndef weight():\n    return WEIGHT\n\n\ndef give(to):\n    global WEIGHT\n    WEIGHT = to\n"
    package = folder / "site-packages" / "weights_of_a_test.py"
    package.parent.mkdir()
    package.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "weights_of_a_test", raising=False)
    return importlib.import_module("weights_of_a_test")


PLACES = (
    in_an_attribute_that_hides_the_class_s,
    as_a_float,
    by_an_operator,
    by_a_name_that_is_made,
    by_a_method_of_pythons,
    in_a_config_that_is_no_mapping,
    in_a_module,
    in_a_name_from_a_module,
    in_the_environment,
    by_getenv,
    in_arguments,
    in_a_default,
    in_a_keyword,
    on_the_function,
    in_a_partial,
    in_a_class,
    in_an_only_object,
    in_slots,
    in_an_enumeration,
    in_a_property,
    in_another_function,
    in_another_dictionary,
    deep_inside,
    in_a_context_variable,
    in_a_threads_own_names,
    by_its_name,
    in_an_array,
    in_a_number_of_numpys,
    in_a_config_of_a_package,
)


@pytest.mark.parametrize("place", PLACES)
def test_a_weight_is_noticed_wherever_it_stands(place, monkeypatch):
    loss, set_weight = place(monkeypatch)
    found, step = both(lambda at, model, optimizer: set_weight(1.0 if at < 6 else 0.25), loss=loss)
    agree(found)
    assert step.graph.captures == 2


@pytest.mark.parametrize("by_module", [False, True])
def test_a_weight_that_a_function_of_a_package_reads_is_noticed(by_module, monkeypatch, tmp_path):
    package = installed(monkeypatch, tmp_path)
    weight = package.weight

    def loss(model, batch):
        return (package.weight() if by_module else weight()) * of_model(model, batch)

    found, step = both(lambda at, model, optimizer: package.give(1.0 if at < 6 else 0.25), loss=loss)
    agree(found)
    assert step.graph.captures == 2


def test_a_number_that_a_models_class_holds_is_noticed():
    class Scaled(Net):
        temperature = 1.0

        def forward(self, x):
            return super().forward(x) / self.temperature

    def prepare(model):
        model.__class__ = Scaled
        Scaled.temperature = 1.0

    def change(at, model, optimizer):
        Scaled.temperature = 1.0 if at < 6 else 2.0

    found, step = both(change, prepare=prepare)
    agree(found)
    assert step.graph.captures == 2


def test_a_rate_that_the_loss_reads_off_the_optimizer_is_noticed():
    def change(at, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 if at < 6 else 0.02

    held = []

    def make(parameters):
        held.append(sgd(parameters))
        return held[-1]

    def loss(model, batch):
        return (1 + held[-1].param_groups[0]["lr"]) * of_model(model, batch)

    found, step = both(change, make=make, loss=loss)
    agree(found)
    assert step.graph.captures == 2


def taken_in_turn():
    weights = iter([1.0 + place for place in range(200)])
    return lambda model, batch: next(weights) * of_model(model, batch)


def drawn():
    generator = random.Random(0)
    return lambda model, batch: (1 + generator.random()) * of_model(model, batch)


def drawn_by_numpy():
    generator = np.random.default_rng(0)
    return lambda model, batch: (1 + generator.uniform()) * of_model(model, batch)


def read_from_a_file(path):
    path.write_text("1.0", encoding="utf-8")
    return lambda model, batch: float(path.read_text(encoding="utf-8")) * of_model(model, batch)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (taken_in_turn, "takes values from a list_iterator"),
        (drawn, "a random generator was used"),
        (drawn_by_numpy, "a random generator was used"),
        (read_from_a_file, "reads a file"),
    ],
)
def test_what_no_comparison_can_follow_is_not_captured(make, reason, tmp_path):
    losses = [make(tmp_path / "weight") if make is read_from_a_file else make() for _ in range(2)]
    turns = iter([0, 1])

    def prepare(model):
        model.turn = next(turns)

    def loss(model, batch):
        return losses[model.turn](model, batch)

    with pytest.warns(UserWarning, match=f"without a CUDA graph.*{reason}"):
        found, step = both(data=batches(60), loss=loss, prepare=prepare)
    agree(found)
    assert step.graph.captures == 0
