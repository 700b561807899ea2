"""Numbers that a captured step of the user's own reads, wherever they are kept: a change is followed."""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import functools
import importlib
import operator
import os
import queue
import sys
import threading
import types
import weakref

import graphed_steps
import numpy as np
import pytest
import torch
from graphed_steps import both, of_model
from own_step_loops import Loop, agree, batches, net, sgd

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


class OfMeta(type):
    rate = 1.0

    @property
    def factor(cls):
        return cls.rate

    def __getitem__(cls, _):
        return OfMeta.rate


class Configured(metaclass=OfMeta):
    pass


class Parent:
    def factor(self):
        return 1.0


class Child(Parent):
    def factor(self):
        return super().factor()


def set_method(value):
    Parent.factor = lambda _: value


def override(value):
    if value != 1.0:
        Heir.factor = lambda _: value
    elif "factor" in vars(Heir):
        del Heir.factor


class Heir(Parent):
    pass


class Doubled(Heir):
    def factor(self):
        return 2.0


HOLDER, HIDING, BY_TEXT, CHILD, HEIR, SWAPPED = Holder(), Holder(), ByText(), Child(), Heir(), Heir()
KINDS = {1.0: Heir, 2.0: Doubled}
ARRAY, BYTES, SET = array.array("d", [1.0]), bytearray(b"\x01"), {1.0}
VIEW, CHAIN, WEAKLY = types.MappingProxyType(TABLE), collections.ChainMap({}, {"factor": 1.0}), weakref.ref(HOLDER)


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


def come(value):
    if value != 1.0:
        OPTIONS.later = value
    else:
        vars(OPTIONS).pop("later", None)


def hide(value):
    if value != 1.0:
        HIDING.factor = None
    else:
        vars(HIDING).pop("factor", None)


def set_class(value):
    Holder.factor = value


VARIABLE = contextvars.ContextVar("factor", default=1.0)
VALUE_NOW = VARIABLE.get


class Stage(enum.Enum):
    FIRST = "first"

    def __init__(self, _):
        self.factor = 1.0


class Weights:
    """Options whose names are made of parts, and which are also read as attributes of other names."""

    def __init__(self):
        self.factor_of_loss, self.held = 1.0, {"factor": 1.0}

    def __getattr__(self, name):
        return self.__dict__["held"][name]

    def of(self, part):
        return getattr(self, f"factor_{part}")


LATE, WAITING, WEIGHTS, FACTOR_OF = threading.Event(), queue.Queue(), Weights(), operator.attrgetter("inner.factor")
PART = "OF_LOSS"


def factor_by_a_call(weights):
    return getattr(weights, "factor_" + PART.lower())


def signal(value):
    (LATE.clear if value == 1.0 else LATE.set)()


def put_into_queue(value):
    if value not in WAITING.queue:
        WAITING.queue.clear()
        WAITING.put(value)


READINGS = {
    "event": (lambda: 2.0 if LATE.is_set() else 1.0, signal),
    "queue": (lambda: WAITING.queue[0], put_into_queue),
    "member of an enumeration": (lambda: Stage.FIRST.factor, lambda value: setattr(Stage.FIRST, "factor", value)),
    "getter": (lambda: FACTOR_OF(HOLDER), lambda value: setattr(HOLDER.inner, "factor", value)),
    "name made in a method": (lambda: WEIGHTS.of("of_loss"), lambda value: setattr(WEIGHTS, "factor_of_loss", value)),
    "name made by a call": (
        lambda: factor_by_a_call(WEIGHTS),
        lambda value: setattr(WEIGHTS, "factor_of_loss", value),
    ),
    "attribute that a method gives": (lambda: WEIGHTS.factor, lambda value: WEIGHTS.held.update(factor=value)),
    "context variable": (lambda: VARIABLE.get(), VARIABLE.set),  # noqa: PLW0108 - by its name
    "method of a context variable": (lambda: VALUE_NOW(), VARIABLE.set),  # noqa: PLW0108 - by its name
    "environment": (lambda: float(os.environ["FACTOR"]), lambda value: os.environ.__setitem__("FACTOR", str(value))),
    "getenv": (lambda: float(os.getenv("FACTOR", "1")), lambda value: os.environ.__setitem__("FACTOR", str(value))),
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
    "property of a metaclass": (lambda: Configured.factor, lambda value: setattr(OfMeta, "rate", value)),
    "operator of a metaclass": (lambda: Configured[0], lambda value: setattr(OfMeta, "rate", value)),
    "method of a parent": (CHILD.factor, set_method),
    "method that a class takes over": (lambda: HEIR.factor() * VIEW["factor"][0], override),
    "view of a dictionary": (lambda: VIEW["factor"][0], lambda value: TABLE["factor"].__setitem__(0, value)),
    "chained dictionaries": (lambda: CHAIN["factor"], lambda value: CHAIN.__setitem__("factor", value)),
    "weak reference": (lambda: WEAKLY().of_object, lambda value: setattr(HOLDER, "of_object", value)),
    "array": (lambda: ARRAY[0], lambda value: ARRAY.__setitem__(0, value)),
    "bytes": (lambda: float(BYTES[0]), lambda value: BYTES.__setitem__(0, int(value))),
    "another class": (lambda: SWAPPED.factor(), lambda value: setattr(SWAPPED, "__class__", KINDS[value])),  # noqa: PLW0108
    "set": (lambda: max(SET), lambda value: (SET.clear(), SET.add(value))),
    "nothing in place of the class's": (lambda: 2.0 if HIDING.factor is None else 1.0, hide),
    "attribute that comes": (lambda: getattr(OPTIONS, "later", 1.0), come),
    "among the modules": (
        lambda: sys.modules["others_of_this_test"].FACTOR,
        lambda value: setattr(OTHERS, "FACTOR", value),
    ),
    "module": (lambda: OTHERS.FACTOR, lambda value: setattr(OTHERS, "FACTOR", value)),
}


@pytest.mark.parametrize("reading", list(READINGS))
def test_a_number_that_changes_is_followed_wherever_it_is(reading, monkeypatch):
    monkeypatch.setitem(sys.modules, OTHERS.__name__, OTHERS)
    monkeypatch.setenv("FACTOR", "1.0")
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


@pytest.mark.parametrize(
    "reading",
    [
        "event",
        "queue",
        "member of an enumeration",
        "getter",
        "name made in a method",
        "name made by a call",
        "attribute that a method gives",
        "array",
        "bytes",
        "set",
        "another class",
        "nothing in place of the class's",
        "attribute that comes",
        "among the modules",
    ],
)
def test_a_number_that_a_loss_reads_is_followed_too(reading, monkeypatch):
    monkeypatch.setitem(sys.modules, OTHERS.__name__, OTHERS)
    read, write = READINGS[reading]

    def loss(model, batch):
        return read() * of_model(model, batch)

    found, step = both(lambda at, model, optimizer: write(1.0 if at < 6 else 2.0), loss=loss)
    graphed_steps.agree(found)
    assert step.graph.captures == 2


@pytest.mark.parametrize("by_module", [False, True])
def test_a_number_that_a_function_of_a_package_reads_is_followed(by_module, monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "factors_of_this_test.py"
    package.parent.mkdir()
    package.write_text("F = 1.0\n\n\ndef get():\n    return F\n\n\ndef put(to):\n    global F\n    F = to\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "factors_of_this_test", raising=False)
    factors = importlib.import_module("factors_of_this_test")
    get = factors.get

    def make():
        factors.put(1.0)
        model = net()
        optimizer = sgd(model)

        def step(batch):
            loss = (factors.get() if by_module else get()) * model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model], [optimizer])

    step = agree(make, change=lambda at, loop: factors.put(1.0 if at < 6 else 2.0), data=batches(16))
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
