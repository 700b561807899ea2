"""Places where a step of training may read a number, each with a way to change the number."""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import functools
import importlib
import logging
import multiprocessing
import operator
import os
import queue
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch

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
        self.inner, self.inside = Slotted(), types.SimpleNamespace(of_it=1.0)
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


METHODS = {1.0: lambda _: 1.0, 2.0: lambda _: 2.0}


def set_method(value):
    Parent.factor = METHODS[value]


def override(value):
    if value != 1.0:
        Heir.factor = METHODS[value]
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


PROXY, LIST_OF = weakref.proxy(HOLDER), list[float]


def with_default(values={"factor": 1.0}):  # noqa: B006 - a default that is changed
    return values["factor"]


def with_attribute():
    return with_attribute.factor


with_attribute.factor = 1.0


partial = functools.partial(lambda factor: factor["value"], factor={"value": 1.0})


def imported_inside():
    import others_of_this_test

    return others_of_this_test.FACTOR


def name_from_a_module():
    from others_of_this_test import FACTOR

    return FACTOR


def with_keyword(*, factor=1.0):
    return factor


def set_global(value):
    globals()["FACTOR"] = value


def come(value):
    if value != 1.0:
        OPTIONS.later = value
    else:
        vars(OPTIONS).pop("later", None)


IN_MEMORY = torch.ones(())
LONG = [1.0] * 200


def give_memory(value):
    if value != IN_MEMORY:
        IN_MEMORY.data = torch.tensor(value)


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
        self.calls, self.share, self.names = 1.0, 1.0, ["share"]

    def __getattr__(self, name):
        return self.__dict__["held"][name]

    def of(self, part):
        return getattr(self, f"factor_{part}")

    def now(self):
        return self.calls

    def call(self, name):
        return getattr(self, name)()

    def sum(self):
        return sum(getattr(self, name) for name in self.names)


LATE, WAITING, WEIGHTS, FACTOR_OF = threading.Event(), queue.Queue(), Weights(), operator.attrgetter("inner.factor")
PART = "OF_LOSS"


def factor_by_a_call(weights):
    return getattr(weights, "factor_" + PART.lower())


def signal(value, event=LATE):
    (event.clear if value == 1.0 else event.set)()


class Settings:
    """Options of which there is one object, which its class holds."""

    factor = 1.0
    only: Settings | None = None

    @classmethod
    def get(cls):
        cls.only = cls.only or cls()
        return cls.only


class Derived(Settings):
    pass


class Weighing:
    """An object that is called by operators; a later factor of its own hides that of its class."""

    factor = 1.0

    def __float__(self):
        return self.factor

    def __rmul__(self, other):
        return other * self.factor

    @property
    def same(self):
        return self.factor


class Level(enum.Enum):
    FIRST = 1.0
    SECOND = 2.0


class Held:
    """An object whose property reads another attribute, and whose function and options may be replaced."""

    def __init__(self):
        self.level, self.count, self.options, self.read = Level.FIRST, 0, {"factor": 1.0}, lambda: 1.0

    @property
    def factor(self):
        return 1.0 if self.count == 0 else 2.0


class Weighed(torch.nn.Module):
    def forward(self):
        return 1.0


class Listed(enum.Enum):
    ALL = [1.0, 2.0]  # noqa: RUF012 - a value that is changed


LOGGER, LEVELS = logging.getLogger("of_this_test.part"), {1.0: logging.INFO, 2.0: logging.DEBUG}
SHARED, SIGNAL, USER_LIST = multiprocessing.Value("d", 1.0), multiprocessing.Event(), collections.UserList([1.0])
SHARED_ARRAY, OBJECTS = multiprocessing.Array("d", [1.0]), np.array([1.0, {"factor": 1.0}], dtype=object)
MANY, NESTED = {str(place): 1.0 for place in range(200)}, [[1.0] for _ in range(200)]
VALUES, BYTES_SEEN = MANY.values(), memoryview(BYTES)
LARGE_SET, CALLER = set(range(200)), operator.methodcaller("first_call")
HELD, WEIGHING, OWN_FACTOR, WEIGHED, OF_THREAD = Held(), Weighing(), Weighing(), Weighed(), threading.local()
DEEP = {"train": {"loss": {"parts": {"main": {"terms": {"factor": 1.0}}}}}}
OF_NUMPY, NUMBER_OF_NUMPY, COUNTED = np.ones(4), {"factor": np.float64(1.0)}, [0]
LARGEST, LENGTH = OF_NUMPY.max, COUNTED.__len__


class Phase:
    """An object that gives its number as a text only."""

    number = 1.0

    def __str__(self):
        return str(self.number)

    def __repr__(self):
        return f"Phase({self.number})"


def hold(lock, value, is_held):
    if (value != 1.0) != is_held:
        (lock.release if is_held else lock.acquire)()


def is_free(lock):
    """Whether a lock can be had, which is given back."""
    return lock.acquire(False) and lock.release() is None


class Weightings(dict):
    factor = 1.0

    def __missing__(self, _):
        return self.factor


class Stages(list):
    def __init__(self):
        super().__init__([1.0, 2.0])
        self.place = 0

    @property
    def now(self):
        return self[self.place]


class Pair(collections.namedtuple("Pair", "first second")):
    factor = 1.0

    @property
    def product(self):
        return self.first * self.factor


class Numbered(torch.utils.data.Dataset):
    factor = 1.0

    def __len__(self):
        return 4


class Private:
    def __init__(self):
        self.held = {"factor": 1.0}

    def __getattribute__(self, name):
        return object.__getattribute__(self, "held")[name] if name == "factor" else object.__getattribute__(self, name)


def once():
    return 1.0


def twice():
    return 2.0


def by_default(factor=1.0):
    return factor


CODES = {1.0: once.__code__, 2.0: twice.__code__}


def put_last(value):
    for name in ("first", "second") if value == 1.0 else ("second", "first"):
        IN_ORDER[name] = IN_ORDER.pop(name)


WEIGHTINGS, STAGES, PAIR, PRIVATE = Weightings(), Stages(), Pair(1.0, 2.0), Private()
IN_ORDER = {"first": 1, "second": 2}
PARAMETER = torch.nn.Parameter(torch.ones(2))
OPTIMIZER, LOADER = torch.optim.SGD([PARAMETER], 0.1), torch.utils.data.DataLoader(Numbered())
SAMPLER = torch.utils.data.DistributedSampler(Numbered(), num_replicas=1, rank=0)
PARAMETER.factor = OPTIMIZER.factor = 1.0
READERS = {1.0: lambda: 1.0, 2.0: lambda: 2.0}
PHASE, LOCK, LOCK_OF_PROCESSES = Phase(), threading.Lock(), multiprocessing.Lock()
OF_VALUE = {1.0: HELD.options, 2.0: {"factor": 2.0}}


def hide_that_of_the_class(value):
    vars(OWN_FACTOR).clear()
    vars(OWN_FACTOR).update({"factor": value} if value != 1.0 else {})


def in_arguments(monkeypatch, folder):
    monkeypatch.setattr(sys, "argv", ["train.py", "1.0"])
    return lambda: float(sys.argv[1]), lambda value: sys.argv.__setitem__(1, str(value))


def package_of_a_number(monkeypatch, folder):
    """A package that has a number, and functions that give and set it."""
    text = "F = 1.0\n\n\ndef get():\n    return F\n\n\ndef put(to):\n    global F\n    F = to\n"
    package = folder / "site-packages" / "factors_of_this_test.py"
    package.parent.mkdir()
    package.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "factors_of_this_test", raising=False)
    return importlib.import_module("factors_of_this_test")


def by_a_function_of_a_package(monkeypatch, folder):
    package = package_of_a_number(monkeypatch, folder)
    get = package.get
    return lambda: get(), package.put  # noqa: PLW0108 - the function, in a name of the reader's


def by_a_package(monkeypatch, folder):
    package = package_of_a_number(monkeypatch, folder)
    return lambda: package.get(), package.put  # noqa: PLW0108 - through the package's name


def in_omegaconf(monkeypatch, folder):
    config = pytest.importorskip("omegaconf").OmegaConf.create({"loss": {"factor": 1.0}})
    return lambda: config.loss.factor, lambda value: setattr(config.loss, "factor", value)


def in_mmengine(monkeypatch, folder):
    config = pytest.importorskip("mmengine").Config({"loss": {"factor": 1.0}})
    return lambda: config.loss.factor, lambda value: setattr(config.loss, "factor", value)


def put_into_queue(value):
    if value not in WAITING.queue:
        WAITING.queue.clear()
        WAITING.put(value)


# Each is what reads the number and what sets it, or a function of monkeypatch and a folder that makes them.
PLACES = {
    "place in a long list": (lambda: LONG[150], lambda value: LONG.__setitem__(150, value)),
    "memory of a tensor": (lambda: IN_MEMORY, give_memory),
    "event": (lambda: 2.0 if LATE.is_set() else 1.0, signal),
    "event of processes": (lambda: 2.0 if SIGNAL.is_set() else 1.0, lambda value: signal(value, SIGNAL)),
    "number of processes": (lambda: SHARED.value, lambda value: setattr(SHARED, "value", value)),
    "array of processes": (lambda: SHARED_ARRAY[0], lambda value: SHARED_ARRAY.__setitem__(0, value)),
    "level of a logger": (
        lambda: 2.0 if LOGGER.isEnabledFor(logging.DEBUG) else 1.0,
        lambda value: LOGGER.parent.setLevel(LEVELS[value]),
    ),
    "logger by its name": (
        lambda: 2.0 if logging.getLogger("of_this_test.other").level == logging.DEBUG else 1.0,
        lambda value: logging.getLogger("of_this_test.other").setLevel(LEVELS[value]),
    ),
    "first of all loggers": (
        lambda: 2.0 if logging.root.isEnabledFor(logging.DEBUG) else 1.0,
        lambda value: logging.root.setLevel(LEVELS[value]),
    ),
    "lock": (lambda: 2.0 if LOCK.locked() else 1.0, lambda value: hold(LOCK, value, LOCK.locked())),
    "lock of processes": (
        lambda: 1.0 if is_free(LOCK_OF_PROCESSES) else 2.0,
        lambda value: hold(LOCK_OF_PROCESSES, value, not is_free(LOCK_OF_PROCESSES)),
    ),
    "text of an object": (lambda: float(str(PHASE)), lambda value: setattr(PHASE, "number", value)),
    "object in a text": (lambda: float(f"{PHASE}0"), lambda value: setattr(PHASE, "number", value)),
    "object filled into a text": (lambda: float("%s0" % PHASE), lambda value: setattr(PHASE, "number", value)),  # noqa: UP031
    "text of an object for a programmer": (
        lambda: 1.0 if repr(PHASE) == "Phase(1.0)" else 2.0,
        lambda value: setattr(PHASE, "number", value),
    ),
    "attribute of a parameter": (lambda: PARAMETER.factor, lambda value: setattr(PARAMETER, "factor", value)),
    "attribute of an optimizer": (lambda: OPTIMIZER.factor, lambda value: setattr(OPTIMIZER, "factor", value)),
    "epoch of a sampler": (lambda: 1.0 + SAMPLER.epoch, lambda value: SAMPLER.set_epoch(int(value) - 1)),
    "dataset of a loader": (
        lambda: LOADER.dataset.factor,
        lambda value: setattr(LOADER.dataset, "factor", value),
    ),
    "kind of a dictionary": (lambda: WEIGHTINGS["loss"], lambda value: setattr(WEIGHTINGS, "factor", value)),
    "kind of a list": (lambda: STAGES.now, lambda value: setattr(STAGES, "place", int(value) - 1)),
    "kind of a tuple": (lambda: PAIR.product, lambda value: setattr(Pair, "factor", value)),
    "order of a dictionary": (lambda: float(next(iter(IN_ORDER.values()))), put_last),
    "code of a function": (once, lambda value: setattr(once, "__code__", CODES[value])),
    "other defaults": (by_default, lambda value: setattr(by_default, "__defaults__", (value,))),
    "private attribute": (lambda: PRIVATE.factor, lambda value: PRIVATE.held.update(factor=value)),
    "list of Python's own class": (lambda: USER_LIST[0], lambda value: USER_LIST.__setitem__(0, value)),
    "method caller": (lambda: CALLER(HOLDER), lambda value: setattr(HOLDER, "of_object", value)),
    "getter in the step": (
        lambda: operator.attrgetter("inner.factor")(HOLDER),
        lambda value: setattr(HOLDER.inner, "factor", value),
    ),
    "array of objects": (lambda: OBJECTS[0], lambda value: OBJECTS.__setitem__(0, value)),
    "object in an array": (lambda: OBJECTS[1]["factor"], lambda value: OBJECTS[1].update(factor=value)),
    "long dictionary": (lambda: MANY["150"], lambda value: MANY.update({"150": value})),
    "long list of lists": (lambda: NESTED[150][0], lambda value: NESTED[150].__setitem__(0, value)),
    "large set": (
        lambda: 1.0 if 1 in LARGE_SET else 2.0,
        lambda value: (LARGE_SET.clear(), LARGE_SET.update(range(int(value), 200 + int(value)))),
    ),
    "all attributes": (lambda: max(vars(HOLDER.inside).values()), lambda value: setattr(HOLDER.inside, "of_it", value)),
    "value of an enumeration": (lambda: Listed.ALL.value[0], lambda value: Listed.ALL.value.__setitem__(0, value)),
    "members of an enumeration": (
        lambda: max(member.factor for member in Stage),
        lambda value: setattr(Stage.FIRST, "factor", value),
    ),
    "queue": (lambda: WAITING.queue[0], put_into_queue),
    "member of an enumeration": (lambda: Stage.FIRST.factor, lambda value: setattr(Stage.FIRST, "factor", value)),
    "getter": (lambda: FACTOR_OF(HOLDER), lambda value: setattr(HOLDER.inner, "factor", value)),
    "name made in a method": (lambda: WEIGHTS.of("of_loss"), lambda value: setattr(WEIGHTS, "factor_of_loss", value)),
    "name made by a call": (
        lambda: factor_by_a_call(WEIGHTS),
        lambda value: setattr(WEIGHTS, "factor_of_loss", value),
    ),
    "method by its name": (lambda: WEIGHTS.call("now"), lambda value: setattr(WEIGHTS, "calls", value)),
    "name in a list": (WEIGHTS.sum, lambda value: setattr(WEIGHTS, "share", value)),
    "attribute that a method gives": (lambda: WEIGHTS.factor, lambda value: WEIGHTS.held.update(factor=value)),
    "context variable": (lambda: VARIABLE.get(), VARIABLE.set),  # noqa: PLW0108 - by its name
    "method of a context variable": (lambda: VALUE_NOW(), VARIABLE.set),  # noqa: PLW0108 - by its name
    "method of an array": (lambda: float(LARGEST()), OF_NUMPY.fill),
    "method of a list": (lambda: float(LENGTH()), lambda value: COUNTED.__setitem__(slice(None), [0] * int(value))),
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
    "partial": (partial, lambda value: partial.keywords["factor"].update(value=value)),
    "import in a function": (imported_inside, lambda value: setattr(OTHERS, "FACTOR", value)),
    "property of a metaclass": (lambda: Configured.factor, lambda value: setattr(OfMeta, "rate", value)),
    "operator of a metaclass": (lambda: Configured[0], lambda value: setattr(OfMeta, "rate", value)),
    "method of a parent": (CHILD.factor, set_method),
    "method that a class takes over": (lambda: HEIR.factor() * VIEW["factor"][0], override),
    "view of a dictionary": (lambda: VIEW["factor"][0], lambda value: TABLE["factor"].__setitem__(0, value)),
    "chained dictionaries": (lambda: CHAIN["factor"], lambda value: CHAIN.__setitem__("factor", value)),
    "weak reference": (lambda: WEAKLY().of_object, lambda value: setattr(HOLDER, "of_object", value)),
    "weak proxy": (lambda: PROXY.of_object, lambda value: setattr(HOLDER, "of_object", value)),
    "class with a type": (lambda: LIST_OF([HOLDER.of_object])[0], lambda value: setattr(HOLDER, "of_object", value)),
    "array": (lambda: ARRAY[0], lambda value: ARRAY.__setitem__(0, value)),
    "values of a dictionary": (lambda: max(VALUES), lambda value: MANY.update({"150": value})),
    "view of bytes": (lambda: float(BYTES_SEEN[0]), lambda value: BYTES.__setitem__(0, int(value))),
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
    "name from a module": (name_from_a_module, lambda value: setattr(OTHERS, "FACTOR", value)),
    "keyword": (with_keyword, lambda value: with_keyword.__kwdefaults__.update(factor=value)),
    "class that is inherited from": (lambda: Derived.factor, lambda value: setattr(Settings, "factor", value)),
    "only object": (lambda: Settings.get().factor, lambda value: setattr(Settings.get(), "factor", value)),
    "in place of the class's": (lambda: OWN_FACTOR.same, hide_that_of_the_class),
    "float of an object": (lambda: float(WEIGHING), lambda value: setattr(WEIGHING, "factor", value)),
    "operator of an object": (lambda: WEIGHING, lambda value: setattr(WEIGHING, "factor", value)),
    "enumeration": (
        lambda: 1.0 if HELD.level is Level.FIRST else 2.0,
        lambda value: setattr(HELD, "level", Level(value)),
    ),
    "property of a count": (lambda: HELD.factor, lambda value: setattr(HELD, "count", int(value != 1.0))),
    "another function": (lambda: HELD.read(), lambda value: setattr(HELD, "read", READERS[value])),  # noqa: PLW0108 - looked up anew
    "another dictionary": (lambda: HELD.options["factor"], lambda value: setattr(HELD, "options", OF_VALUE[value])),
    "deep inside": (
        lambda: DEEP["train"]["loss"]["parts"]["main"]["terms"]["factor"],
        lambda value: DEEP["train"]["loss"]["parts"]["main"]["terms"].update(factor=value),
    ),
    "thread's own names": (lambda: OF_THREAD.factor, lambda value: setattr(OF_THREAD, "factor", value)),
    "global by its name": (lambda: globals()["FACTOR"], set_global),
    "array of numpy": (lambda: float(OF_NUMPY[1]), lambda value: OF_NUMPY.__setitem__(1, value)),
    "number of numpy": (
        lambda: float(NUMBER_OF_NUMPY["factor"]),
        lambda value: NUMBER_OF_NUMPY.update(factor=np.float64(value)),
    ),
    "method of a module": (
        WEIGHED,
        lambda value: setattr(Weighed, "forward", METHODS[value]),
    ),
    "arguments": in_arguments,
    "function of a package": by_a_function_of_a_package,
    "package": by_a_package,
    "config of a package": in_omegaconf,
    "config that is no mapping": in_mmengine,
}


def place_of(name, monkeypatch, folder):
    """The code that reads a number at a place, and the code that changes it."""
    monkeypatch.setitem(sys.modules, OTHERS.__name__, OTHERS)
    monkeypatch.setenv("FACTOR", "1.0")
    place = PLACES[name]
    return place(monkeypatch, folder) if callable(place) else place
