"""The Python state that a function can read or change: found, compared with what it was, and put back.

A function reaches the variables it closes over, its defaults, and the global names in its code; from these on, what
containers and objects hold, and the user's own functions and methods. Of the user's own objects, classes and modules
only those attributes count that the code names.
"""

import builtins
import collections
import collections.abc
import dis
import enum
import functools
import gc
import itertools
import operator
import os
import random
import sys
import types
import typing
import weakref
from contextvars import ContextVar
from itertools import chain

import torch

from advisor.portable.nested import slots_of
from advisor.portable.optimizer_steps import updates_without_host
from advisor.portable.owners import (
    folder_of,
    is_in_package,
    is_of_library,
    is_of_other_package,
    is_of_package,
    package_of,
)
from advisor.portable.places import Place, inner_state, is_plain, put_at, value_at, value_of_cell
from advisor.portable.python_state import NAMESPACES, OF_TORCH, give_contents
from advisor.portable.read_code import ENVIRONMENT, USES_GLOBAL, codes_of, function_behind, names_of_globals
from advisor.portable.watching import Places

# Values that are watched, at most. A count: each is compared before every replay, in some 0.05 us.
MOST_REACHED = 40_000
# Largest NumPy array that is compared by its contents. Bytes.
MOST_ARRAY_BYTES = 4096
# Of PyTorch's own classes, beside modules, those with state that a step reads and changes.
TORCH_STATE = ("torch.optim", "torch.amp", "torch.cuda.amp", "torch.distributions", "torch.nn")
SEQUENCES = (list, set, collections.deque)
CALLS = (types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial)
# Names by which code reaches attributes that it does not name.
ANY_ATTRIBUTE = frozenset({"__dict__", "vars", "attrgetter"})
# Methods that make an object, or show it to a person.
MAKING = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__"})
# Functions by which code reaches whatever a text names.
ANYTHING = frozenset({"globals", "eval", "exec"})
ATTRIBUTE_BY_TEXT = frozenset({"getattr", "setattr", "hasattr", "delattr"})


class ReachableState:
    """The state that functions and objects reach, as it is now.

    ``facts`` has a value for each name, such as ``trainer.steps``: of plain values themselves, of containers their
    class and size, of tensors and other objects which one it is. ``is_same_now`` compares the objects, quickly; an
    equal container or number in the place of another makes no difference to ``changed_since``, which compares facts.
    Learning rates of optimizers that read them on the device are left out: a captured step has them in tensors.
    ``seen`` has the objects by their numbers. ``cannot_watch`` says what is reached that cannot be compared; empty
    where there is nothing.
    """

    def __init__(self, *roots: typing.Any) -> None:
        self.facts: dict[str, typing.Any] = {}
        self.places: dict[str, Place] = {}  # of the tensors in facts
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.modules: list[torch.nn.Module] = []
        self.device_generators: list[torch.Generator] = []
        self.cannot_watch = ""
        self._generators: list[typing.Any] = []
        self._dicts: list[dict[typing.Any, typing.Any]] = []
        self._sequences: list[typing.Any] = []
        self._namespaces: list[typing.Any] = []  # of which single attributes are looked at
        self._spaces_of_classes: list[typing.Mapping[str, typing.Any]] = []
        self._arrays: list[typing.Any] = []
        self.seen: dict[int, typing.Any] = {}
        self._classes: set[tuple[int, bool]] = set()
        self._groups: set[int] = set()  # of optimizers whose learning rates are copied in
        self._names = {"forward"}  # in the code that is reached
        self._own_files = set(map(file_of, roots))
        self._waiting = collections.deque((name_of_kind(root), root) for root in roots)
        self._unnamed: list[tuple[str, typing.Callable[[], None]]] = []  # to be looked at once code names them
        singles: list[Place] = []
        self._single = singles.append
        self._walk()
        self._singles = Places(singles)
        self.remember()

    def is_same_now(self) -> bool:
        """Whether all places hold the same objects."""
        if self._read_sizes() != self._sizes or self._contents != [array.tobytes() for array in self._arrays]:
            return False
        return all(map(operator.is_, self._read_values(), self._values))

    def changed_since(self, before: "ReachableState") -> list[str]:
        """The names of what is another than before, came or went."""
        names = {**self.facts, **before.facts}
        return [name for name in names if self.facts.get(name, "none") != before.facts.get(name, "none")]

    def put_back(self) -> None:
        """Give all variables, containers and objects what they held. What was written into a tensor stays."""
        for held, kept in self._kept:
            give_contents(held, kept)
        for held, names in self._had:
            for name in held.keys() - names:
                del held[name]
        for place, value in zip(self._singles.places, self._single_values, strict=True):
            if value_at(*place) is not value:
                put_at(*place, value)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of this name in ``places``."""
        return self.seen[self.facts[name]]  # type: ignore[no-any-return]

    def draws(self) -> list[typing.Any]:
        """The states of the random generators that were found."""
        return [inner_state(generator) for generator in self._generators]

    def remember(self) -> None:
        """Take what the places hold now for what ``is_same_now`` and ``put_back`` compare with and put there."""
        self._sizes = self._read_sizes()
        self._filled = [held for held in self._dicts if held]  # most have nothing, such as those for hooks
        self._single_values = self._singles.read()
        self._kept = [(held, dict(dict.items(held))) for held in self._dicts] + [
            (held, list(held)) for held in self._sequences
        ]
        self._had = [(held, set(held)) for held in self._namespaces]
        self._values = list(self._read_values())
        self._contents = [array.tobytes() for array in self._arrays]

    def _read_sizes(self) -> list[int]:
        others = chain(self._sequences, self._namespaces, self._spaces_of_classes)
        return [*map(dict.__len__, self._dicts), *map(len, others)]

    def _read_values(self) -> typing.Iterator[typing.Any]:
        filled = self._filled
        inside = chain(chain.from_iterable(map(dict.keys, filled)), chain.from_iterable(map(dict.values, filled)))
        return chain(inside, chain.from_iterable(self._sequences), self._singles.read())

    # --- the walk -------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        """Look at what is reached, what is near first, until nothing is left but what no code names."""
        while self._waiting and not self.cannot_watch:
            label, thing = self._waiting.popleft()
            try:
                self._look_at(label, thing)
            except Exception:  # an object of any class may refuse to be looked into
                self.cannot_watch = f"the step reaches {label}, which cannot be looked into"
            if len(self.facts) > MOST_REACHED:
                self.cannot_watch = f"the step reaches more than {MOST_REACHED:,} values, too many to watch"
            if not self._waiting:
                self._look_at_named()

    def _look_at_named(self) -> None:
        """Look at the attributes that the code names which was found since."""
        found = [look for name, look in self._unnamed if self._is_named(name)]
        self._unnamed = [(name, look) for name, look in self._unnamed if not self._is_named(name)]
        for look in found:
            look()

    def _is_named(self, name: str) -> bool:
        return name in self._names or not ANY_ATTRIBUTE.isdisjoint(self._names)

    def _look_at(self, label: str, thing: typing.Any) -> None:
        if is_plain(thing) or id(thing) in self.seen:
            return
        self.seen[id(thing)] = thing  # kept, or another object could get its number
        if isinstance(thing, torch.Tensor):
            self.tensors.append(thing)
        elif isinstance(thing, CALLS):
            self._look_at_call(label, thing)
        elif isinstance(thing, dict):
            self._look_at_dict(label, thing)
        elif isinstance(thing, (tuple, frozenset)):
            self._note_all(label, thing, enumerate(thing))
        elif isinstance(thing, SEQUENCES):
            self._sequences.append(thing)
            self._note_all(label, thing, enumerate(thing))
        elif isinstance(thing, types.ModuleType):
            if not is_of_package(thing):
                self._look_at_some(label, vars(thing), vars(thing))
                return
            functions = [(name, one) for name, one in list(vars(thing).items()) if is_of_other_package(one)]
            self._unnamed += [(name, functools.partial(self._waiting.append, (name, one))) for name, one in functions]
        elif isinstance(thing, ContextVar):
            self._note_single(label, thing, "")
        elif isinstance(thing, type):
            self._look_at_class(thing, makes=True)
        else:
            self._look_at_object(label, thing)

    def _look_at_object(self, label: str, thing: typing.Any) -> None:
        kind = type(thing)
        owned = not is_of_package(kind)
        if problem := why_not_watched(label, thing, owned=owned):
            self.cannot_watch = problem
        elif hasattr(thing, "__array_interface__"):
            self._arrays.append(thing)
        elif isinstance(thing, torch.Generator) and thing.device.type != "cpu":
            self.device_generators.append(thing)
        elif is_generator(thing):
            self._generators.append(thing)
        elif isinstance(thing, weakref.ReferenceType):
            self._waiting.append((label, thing()))
        elif isinstance(thing, collections.abc.Mapping) and is_known(kind):  # as a view of a dictionary
            self._waiting += [(label, part) for part in gc.get_referents(thing) if not isinstance(part, type)]
        elif owned or isinstance(thing, NAMESPACES) or not is_known(kind):
            self._sort(thing)
            own = getattr(thing, "__dict__", {})
            for name in [name for base in kind.__mro__ for name in slots_of(base) if hasattr(thing, name)]:
                self._note_single(f"{label}.{name}", thing, name)
            if owned:
                self._look_at_class(kind)
                of_module = OF_TORCH if isinstance(thing, torch.nn.Module) else ()
                self._look_at_some(label, own, own, always=own if inherits_from_package(kind) else of_module)
            else:
                self._look_at_dict(label, own)
        own = getattr(thing, "__dict__", None)
        if isinstance(own, dict) and "__wrapped__" in own:  # as a function behind a cache
            self._waiting.append((label, own["__wrapped__"]))

    def _sort(self, thing: typing.Any) -> None:
        if isinstance(thing, torch.nn.Module):
            self.modules.append(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            self.optimizers.append(thing)
            if updates_without_host(thing):
                self._groups.update(map(id, thing.param_groups))

    def _look_at_some(
        self, label: str, holder: typing.Any, names: typing.Iterable[str], always: typing.Container[str] = ()
    ) -> None:
        """Look at the attributes in a namespace that code names, and at these that are ``always`` looked at."""
        if isinstance(holder, dict):
            self._namespaces.append(holder)
        for name in list(names):
            look = functools.partial(self._note_single, f"{label}.{name}", holder, name)
            if name in always:
                look()
            else:
                self._unnamed.append((name, look))

    def _look_at_class(self, kind: type, *, makes: bool = False) -> None:
        """Look at class attributes and methods that code names, and at the methods that Python calls itself.

        ``makes``: the code may make objects of the class. The class itself may be an object of one of the user's own.
        """
        if not is_of_package(type(kind)):
            self._look_at_class(type(kind))
        for base in kind.__mro__:
            if is_of_package(base) or (id(base), makes) in self._classes:
                continue
            self._classes.add((id(base), makes))
            self._spaces_of_classes.append(vars(base))
            for name, member in list(vars(base).items()):
                function = function_behind(member)
                if isinstance(function, types.FunctionType):
                    look = functools.partial(self._look_at_method, base, name, function)
                    implied = name in MAKING if makes else name.startswith("__") and name not in MAKING
                    look() if implied else self._unnamed.append((name, look))
                elif not name.startswith("__"):
                    self._look_at_some(base.__name__, base, [name])

    def _look_at_method(self, base: type, name: str, function: types.FunctionType) -> None:
        """Look at a function in a class, and note its place, where another may come."""
        label = f"{base.__name__}.{name}"
        self._note_single(label, base, name)
        self._waiting.append((label, function))

    def _look_at_call(self, label: str, call: typing.Any) -> None:
        if isinstance(call, functools.partial):
            self._waiting += [(label, call.func), (label, call.args), (label, call.keywords)]
        elif isinstance(call, types.MethodType):
            self._waiting += [(name_of_kind(call.__self__, label), call.__self__), (label, call.__func__)]
        elif isinstance(call, types.FunctionType):
            self._look_at_function(label, call)
        elif not isinstance(call.__self__, types.ModuleType):  # as the append of a list
            self._waiting.append((label, call.__self__))

    def _look_at_function(self, label: str, function: types.FunctionType) -> None:
        code = function.__code__
        cells = list(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._waiting += [(f"{label}.{name}", value) for name, value in vars(function).items()]
        if vars(function):
            self._look_at_dict(label, vars(function))
        if is_in_package(code.co_filename) and code.co_filename not in self._own_files:
            self._waiting += [(name, value_of_cell(cell)) for name, cell in cells]
            if is_of_other_package(function):
                self._look_at_plain(function)
            return
        for name, cell in cells:
            self._note_single(name, cell, "")
        self._waiting += [(label, function.__defaults__), (label, function.__kwdefaults__)]
        for part in codes_of(code):
            self._look_at_imported(part, function.__globals__)
            self._names.update(part.co_names)
            if not ENVIRONMENT.isdisjoint(part.co_names):
                self._arrays.append(Environment())
                self.facts["os.environ"] = Environment().tobytes()
            if not ANYTHING.isdisjoint(part.co_names):
                self.cannot_watch = (
                    f"{function.__name__} may reach anything by {', '.join(ANYTHING & {*part.co_names})}"
                )
            self._names.update(names_by_text(part))
        for name in names_of_globals(code, USES_GLOBAL):
            if name in function.__globals__ or not hasattr(builtins, name):
                self._note_single(name, function.__globals__, name)

    def _look_at_plain(self, function: types.FunctionType) -> None:
        """Look at the plain values that a function of a package reads among its module's names."""
        for name in names_of_globals(function.__code__, USES_GLOBAL):
            if name in function.__globals__ and is_plain(function.__globals__[name]):
                self._note_single(name, function.__globals__, name)

    def _look_at_imported(self, code: types.CodeType, around: dict[str, typing.Any]) -> None:
        """Look at the modules that code imports when it runs."""
        for one in dis.get_instructions(code):
            if one.opname == "IMPORT_NAME":
                inside = f"{around.get('__package__')}.{one.argval}".rstrip(".")
                found = [sys.modules.get(name) for name in (one.argval, inside)]
                self._waiting += [(one.argval, module) for module in found if module is not None]

    def _look_at_dict(self, label: str, held: dict[typing.Any, typing.Any]) -> None:
        if id(held) in self._groups:
            self._look_at_some(label, held, sorted(held.keys() - {"lr"}), always=held)
            return
        self._dicts.append(held)
        self._waiting += [(label, key) for key in dict.keys(held) if not is_plain(key)]
        for place, (key, value) in enumerate(list(dict.items(held))):
            self._note(f"{label}.{key if isinstance(key, str) else place}", value, (held, key))

    def _note_all(self, label: str, holder: typing.Any, parts: typing.Iterable[tuple[int, typing.Any]]) -> None:
        for place, value in list(parts):
            self._note(f"{label}[{place}]", value, (holder, place))

    def _note_single(self, label: str, holder: typing.Any, name: typing.Any) -> None:
        """Note one place of a namespace whose other places may not matter."""
        self._single((holder, name))
        self._note(label, value_at(holder, name), (holder, name))

    def _note(self, label: str, value: typing.Any, place: Place) -> None:
        """Note what a place holds, and look into it later."""
        while label in self.facts:
            label += "'"
        self.facts[label] = fact_of(value)
        if isinstance(value, torch.Tensor) and not isinstance(place[0], (tuple, set, frozenset)):
            self.places[label] = place
        self._waiting.append((label, value))


class Environment:
    """The environment, compared as arrays are."""

    def tobytes(self) -> bytes:
        """All of it."""
        return repr(sorted(os.environ.items())).encode("utf-8", "surrogateescape")


def names_by_text(code: types.CodeType) -> set[str]:
    """The names by which code gets attributes with ``getattr`` and the like; a name for any where it computes one."""
    found: set[str] = set()
    instructions = list(dis.get_instructions(code))
    for place, one in enumerate(instructions):
        if one.argval in ATTRIBUTE_BY_TEXT and one.opname.startswith("LOAD_"):
            given = list(itertools.takewhile(lambda one: not one.opname.startswith("CALL"), instructions[place + 1 :]))
            texts = [one.argval for one in given if one.opname == "LOAD_CONST" and isinstance(one.argval, str)]
            is_plain_call = texts and all(one.opname.startswith(("LOAD_", "PUSH_", "PRECALL")) for one in given)
            found.update(texts if is_plain_call else ["__dict__"])
    return found


def fact_of(value: typing.Any) -> typing.Any:
    """The key by which a value is compared: itself, a container's class and size, a function's code, or an identity."""
    if is_plain(value):
        return type(value), value
    if isinstance(value, (dict, tuple, frozenset, *SEQUENCES)):
        return type(value), len(value)
    if isinstance(value, types.MethodType):
        return id(value.__self__), id(value.__func__)
    if isinstance(value, types.FunctionType) and not is_in_package(value.__code__.co_filename):
        return id(value.__code__), fact_of(value.__defaults__), fact_of(value.__kwdefaults__)  # its closure has places
    if hasattr(type(value), "__array_interface__") and value.nbytes <= MOST_ARRAY_BYTES:
        return value.shape, value.tobytes()
    return id(value)


def why_not_watched(label: str, thing: typing.Any, *, owned: bool) -> str:
    """A sentence on an object whose changes cannot be seen; empty for others. ``owned``: its class is the user's."""
    kind = type(thing)
    if isinstance(thing, torch.cuda.CUDAGraph):
        return f"the step replays a CUDA graph of its own, {label}"
    if hasattr(kind, "__next__") and not owned:
        return f"the step reaches the iterator {label} ({kind.__name__}), whose state cannot be compared"
    if hasattr(kind, "__array_interface__") and thing.nbytes > MOST_ARRAY_BYTES:
        return f"the step reaches the NumPy array {label} of {thing.nbytes:,} bytes, too large to watch for a change"
    return ""


def is_generator(thing: typing.Any) -> bool:
    """Whether an object draws random numbers on the host."""
    return isinstance(thing, (torch.Generator, random.Random)) or not {"bit_generator", "_bit_generator"}.isdisjoint(
        dir(type(thing))
    )


def name_of_kind(thing: typing.Any, otherwise: str = "the step") -> str:
    """The name of an object's class, in place of a variable that holds it; of a function or a class another one."""
    return otherwise if isinstance(thing, (types.FunctionType, type)) else type(thing).__name__


def file_of(call: typing.Any) -> str:
    """The file with the code of a function that is called; empty where there is none, or it is PyTorch's."""
    while isinstance(call, (functools.partial, types.MethodType)):
        call = call.func if isinstance(call, functools.partial) else call.__func__
    code = getattr(call, "__code__", None)
    file = code.co_filename if isinstance(code, types.CodeType) else ""
    return "" if folder_of(torch) in file else file


def inherits_from_package(kind: type) -> bool:
    """Whether code of an installed package, beside that of any module, may use the attributes of a class's objects."""
    usual = (object, torch.nn.Module)
    others = [base for base in kind.__mro__ if base not in usual and is_of_package(base)]
    return any(package_of(base) not in sys.stdlib_module_names for base in others)


def is_known(kind: type) -> bool:
    """Whether a class is Python's, NumPy's or PyTorch's, and none of those with state that a step changes."""
    if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)):
        return False
    return issubclass(kind, enum.Enum) or (is_of_library(kind) and not kind.__module__.startswith(TORCH_STATE))
