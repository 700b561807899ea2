"""A walk over what code reaches: variables, containers, objects, classes, functions, modules and tensors.

It begins at functions, models and other objects. A function leads to the variables that it closes over, its defaults
and the global names in its code; from these on, to what containers and objects hold, and to the user's own functions
and methods. Of the user's own objects, classes and modules only those attributes count that the code names. The code is
not run.
"""

import builtins
import collections
import collections.abc
import datetime
import enum
import functools
import gc
import io
import itertools
import logging
import operator
import os
import sys
import types
import typing
import weakref
from contextvars import ContextVar

import torch

from advisor.step.clocks import CLOCK, NOW, is_clock
from advisor.step.host_draws import generators_of_host, is_generator
from advisor.step.nested import slots_of
from advisor.step.noted import ANY_ATTRIBUTE, ANYTHING, FILE_READERS, LOGGERS, MAKING, WRITERS, Noted
from advisor.step.owners import (
    file_of,
    inherits_from_package,
    is_in_package,
    is_installed,
    is_of_library,
    is_of_other_package,
    is_of_package,
    is_without_state,
    packages_of,
)
from advisor.step.places import (
    AS_WHOLE,
    LOCKS,
    Place,
    is_options,
    is_plain,
    value_at,
    value_of_cell,
)
from advisor.step.python_state import CONTAINERS, MOST_COPIED, OF_TORCH, is_compared_as_whole
from advisor.step.read_code import (
    ENVIRONMENT,
    READS_GLOBAL,
    USES_GLOBAL,
    asks_by_any_name,
    codes_of,
    function_behind,
    hidden_in,
    makes_texts,
    methods_called,
    modules_imported,
    names_by_text,
    names_in,
    names_of_globals,
    names_read,
    parts_of_names,
    places_of_methods,
    takes_all_attributes,
    texts_in,
)

# Values that are watched, at most. A count: each is compared before every replay, in some 0.05 us.
MOST_REACHED = 40_000
SEQUENCES = (list, set, collections.deque)
OF_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset, torch.utils.data.Sampler)
METHODS_IN_C = (types.BuiltinMethodType, types.MethodWrapperType)
CALLS = (types.FunctionType, types.MethodType, *METHODS_IN_C, functools.partial)


class Walk(Noted):
    """Walks from ``roots`` and notes what is reached.

    With ``only_reads`` it notes what the forward passes of models and losses read. Without, all that a step may read or
    change: also the state of modules and optimizers, and attributes that are only set. ``problem`` says what is reached
    that no comparison can follow; empty where there is nothing.
    """

    only_reads = True

    def __init__(self, *roots: typing.Any) -> None:
        super().__init__()
        # Objects by their numbers; those that are looked after elsewhere are not looked at.
        self.seen: dict[int, typing.Any] = {id(one): one for one in generators_of_host()}
        self.problem = self.taken_from = ""
        self._of_data: set[int] = set()  # loaders and datasets of which the numbers count
        self._seen_classes: set[tuple[int, bool]] = set()
        self._configs: set[int] = set()  # objects of packages of which all attributes count
        self._names = {"forward", "__call__"}  # in the code that is reached
        self._parts_of_names: set[str] = set()  # with which that code makes others
        self._texts: set[str] = set()  # that are reached: names too where code asks by one that stands in a variable
        self._asks_by_variable = self._takes_all = False
        self._own_files = set(map(file_of, roots))
        self._waiting = collections.deque((name_of_kind(root), root) for root in roots)
        self._unnamed: list[tuple[str, typing.Callable[[], None]]] = []  # to be looked at once code names them
        self._walk()

    def _walk(self) -> None:
        """Look at what is reached, what is near first, until nothing is left but what no code names."""
        while self._waiting and (self.only_reads or not self.problem):
            label, thing = self._waiting.popleft()
            try:
                self._look_at(label, thing)
            except Exception:  # an object of any class may refuse to be looked into
                self._refuse(f"the step reaches {label}, which cannot be looked into")
            if len(self.noted) > MOST_REACHED:
                if not self.only_reads:
                    self._refuse(f"the step reaches more than {MOST_REACHED:,} values, too many to watch")
                return
            if not self._waiting:
                self._look_at_named()

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _look_at_named(self) -> None:
        """Look at the attributes that the code names which was found since."""
        found = [look for name, look in self._unnamed if self._is_named(name)]
        self._unnamed = [(name, look) for name, look in self._unnamed if not self._is_named(name)]
        for look in found:
            look()

    def _is_named(self, name: str) -> bool:
        if name in self._names or self._takes_all or not (self.only_reads or ANY_ATTRIBUTE.isdisjoint(self._names)):
            return True
        if not self.only_reads or (self._asks_by_variable and name in self._texts):
            return self.only_reads
        return any(name.startswith(part) or name.endswith(part) for part in self._parts_of_names)

    def _look_at(self, label: str, thing: typing.Any) -> None:
        thing = thing.__reduce_ex__.__self__ if type(thing) in weakref.ProxyTypes else thing
        if (is_plain(thing) and not isinstance(thing, enum.Enum)) or id(thing) in self.seen:
            return
        self.seen[id(thing)] = thing  # kept, or another object could get its number
        self._look_at_beside(label, thing)
        if isinstance(thing, torch.Tensor):
            self.tensors.append(thing)
        elif isinstance(thing, CALLS):
            self._look_at_call(label, thing)
        elif isinstance(thing, dict):
            self._look_at_dict(label, thing)
        elif isinstance(thing, (tuple, frozenset, *SEQUENCES)):
            self.sequences += [thing] if isinstance(thing, SEQUENCES) else []
            for place, value in enumerate(self._some_of(thing, thing)):
                self._note(f"{label}[{place}]", value, (thing, place))
        elif isinstance(thing, types.ModuleType):
            self._look_at_python_module(label, thing)
        elif isinstance(thing, ContextVar):
            self._note_single(label, thing, "")
        elif isinstance(thing, type):
            self._look_at_class(thing, makes=True)
        elif self.only_reads and isinstance(thing, torch.nn.Module):
            self._look_at_layer(label, thing)
        elif isinstance(thing, torch.optim.Optimizer):
            self._look_at_optimizer(label, thing)
        else:
            self._look_at_object(label, thing)

    def _look_at_beside(self, label: str, thing: typing.Any) -> None:
        """Look at the attributes of a tensor, and of a container of a class of the user's own."""
        if isinstance(thing, torch.Tensor) and vars(thing):
            self._look_at_some(label, vars(thing), vars(thing))
        elif isinstance(thing, (dict, tuple, frozenset, *SEQUENCES)) and not is_of_package(type(thing)):
            self._look_at_attributes(label, thing)

    def _some_of(self, held: typing.Any, parts: typing.Iterable[typing.Any]) -> list[typing.Any]:
        """All parts of a container; in forward passes the first of many, none of one that is compared as a whole."""
        if self.only_reads and is_compared_as_whole(held):
            self.arrays.append(held)
            return []
        return list(itertools.islice(parts, MOST_COPIED if self.only_reads else None))

    # --- objects --------------------------------------------------------------------------------------------------

    def _look_at_python_module(self, label: str, module: types.ModuleType) -> None:
        """Look at what code names of a module; of an installed one at constants, lists and most functions."""
        own = vars(module)
        self._waiting += [(label, datetime.datetime)] if module is datetime else []
        if not is_of_package(module):
            self._look_at_some(label, own, own)
            return
        for name, value in list(own.items()):
            is_function = isinstance(value, types.FunctionType) and not is_of_library(value)
            found = is_function or is_plain(value) or is_clock(value)
            if found or isinstance(value, (list, logging.Logger)):
                self._unnamed.append((name, functools.partial(self._note_single, f"{label}.{name}", own, name)))

    def _look_at_layer(self, label: str, layer: torch.nn.Module) -> None:
        """Look at what a layer's forward pass reads in it, but for its parameters, buffers and mode."""
        kind: typing.Any = type(layer)
        own = vars(layer)
        self.modules.append(layer)
        self.objects.append(layer)
        self._waiting += [(f"{label}.{name}", child) for name, child in layer.named_children()]
        for name, parameter in layer.named_parameters(recurse=False):
            self._look_at_beside(f"{label}.{name}", parameter)
        of_torch = kind.__module__.startswith("torch.")
        names = (own.keys() - OF_TORCH) | ({"forward"} & own.keys())
        read: typing.Collection[str] = names_read(kind, "forward")
        if of_torch:
            read = {name for name in names if type(own[name]) is float or (name in read and is_plain(own[name]))}
        self._look_at_some(label, own, [*names, *hidden_in(kind, own)], always={"forward", *read})
        if not of_torch:
            self._look_at_class(kind)
            self._look_at_methods(label, kind, own)
            if packages_of(kind):
                self._configs.update(id(own[name]) for name in read & own.keys())

    def _look_at_object(self, label: str, thing: typing.Any) -> None:
        kind = type(thing)
        owned = not is_of_package(kind)
        if problem := self._problem_of(label, thing, owned=owned):
            self._refuse(problem)
        elif hasattr(kind, "__array_interface__") or isinstance(thing, AS_WHOLE):
            self.arrays.append(thing)
            if hasattr(kind, "__array_interface__") and thing.dtype.kind == "O":
                self._waiting += [(label, part) for part in thing.flat[:MOST_COPIED]]
        elif isinstance(thing, LOCKS):  # to wait for one decides nothing
            self._unnamed += [(name, functools.partial(self.arrays.append, thing)) for name in ("locked", "acquire")]
        elif is_generator(thing):
            of_device = isinstance(thing, torch.Generator) and thing.device.type != "cpu"
            (self.device_generators if of_device else self.generators).append(thing)
        elif isinstance(thing, (operator.attrgetter, operator.methodcaller)):
            made_by: typing.Any = thing.__reduce__()
            given = [*getattr(made_by[0], "args", ()), *made_by[1]]
            self._names.update(part for text in given if isinstance(text, str) for part in text.split("."))
            self._waiting += [(label, part) for part in (*made_by, *given)]
        elif isinstance(thing, weakref.ReferenceType):
            self._waiting.append((label, thing()))
        elif isinstance(thing, (types.MappingProxyType, collections.abc.MappingView)):
            self._waiting += [(label, part) for part in gc.get_referents(thing) if not isinstance(part, type)]
        elif isinstance(thing, OF_DATA) and not owned:
            self._look_at_data(label, thing)
        elif owned or not is_without_state(kind):
            self._look_at_attributes(label, thing)
        own = getattr(thing, "__dict__", None)
        for name, value in own.items() if isinstance(own, dict) and callable(thing) else ():
            if name == "__wrapped__" or (isinstance(value, types.FunctionType) and not is_installed(value)):
                self._waiting.append((label, value))  # as a function behind a cache

    def _problem_of(self, label: str, thing: typing.Any, *, owned: bool) -> str:
        """A sentence on an object that no comparison can follow. ``owned``: its class is the user's."""
        streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        if owned or not hasattr(type(thing), "__next__") or any(thing is one for one in streams):
            return ""
        kind = type(thing).__name__
        self.taken_from = self.taken_from if isinstance(thing, io.IOBase) else kind
        return f"the step reaches {label} ({kind}), an iterator or a file, whose state cannot be compared"

    def _look_at_optimizer(self, label: str, optimizer: torch.optim.Optimizer) -> None:
        """Look at the options of an optimizer's groups, and at its other attributes that code names."""
        self._look_at_some(label, vars(optimizer), vars(optimizer).keys() - {"param_groups", "state"})
        for group in optimizer.param_groups:
            self._look_at_some(label, group, group.keys() - {"params"}, always=group)

    def _look_at_data(self, label: str, thing: typing.Any) -> None:
        """Look at the numbers that code names in a loader, a sampler or a dataset, and in those that it holds."""
        own = vars(thing)
        plain = [name for name, value in own.items() if is_plain(value) or isinstance(value, list)]
        self._look_at_some(label, own, [*plain, *hidden_in(type(thing), own)])
        for name, value in own.items():
            if isinstance(value, OF_DATA) and id(value) not in self._of_data:
                self._of_data.add(id(value))
                self._look_at_data(f"{label}.{name}", value)

    def _look_at_attributes(self, label: str, thing: typing.Any) -> None:
        self.modules += [thing] if isinstance(thing, torch.nn.Module) else []
        self.objects.append(thing)
        kind, own = type(thing), getattr(thing, "__dict__", None)
        own = own if isinstance(own, dict) else {}  # that of ``list[int]`` is the one of the class
        for name in [name for base in kind.__mro__ for name in slots_of(base) if hasattr(thing, name)]:
            self._note_single(f"{label}.{name}", thing, name)
        if not is_of_package(kind):
            self._look_at_class(kind)
            of_module = OF_TORCH if isinstance(thing, torch.nn.Module) else ()
            always = own if inherits_from_package(kind) and not self.only_reads else of_module
            self._look_at_some(label, own, [*own, *hidden_in(kind, own)], always)
        elif self.only_reads and not self._is_config(thing):
            self._look_at_some(label, own, own)
        else:
            self._look_at_dict(label, own)
        self._look_at_methods(label, kind, own)

    def _is_config(self, thing: typing.Any) -> bool:
        """Whether an object of a package gives what it holds by keys, or as attributes; or is in such an object."""
        kind = type(thing)
        by_name = hasattr(kind, "__getattr__") and hasattr(kind, "__getitem__")
        is_named = by_name or isinstance(thing, collections.abc.Mapping) or is_options(thing)
        if not is_named and id(thing) not in self._configs:
            return False
        for part in getattr(thing, "__dict__", {}).values():
            self._configs.update(map(id, part.values() if type(part) is dict else [part]))
        return True

    def _look_at_some(
        self, label: str, holder: typing.Any, names: typing.Iterable[str], always: typing.Container[str] = ()
    ) -> None:
        """Look at the attributes in a namespace that code names, and at these that are ``always`` looked at."""
        if isinstance(holder, dict):
            self.namespaces.append(holder)
        for name in list(names):
            look = functools.partial(self._note_single, f"{label}.{name}", holder, name)
            if name in always:
                look()
            else:
                self._unnamed.append((name, look))

    def _look_at_dict(self, label: str, held: dict[typing.Any, typing.Any]) -> None:
        self.dicts.append(held)
        self._waiting += [(label, key) for key in dict.keys(held) if not is_plain(key)]
        self._texts.update(key for key in dict.keys(held) if type(key) is str)
        for place, (key, value) in enumerate(self._some_of(held, list(dict.items(held)))):
            self._note(f"{label}.{key if isinstance(key, str) else place}", value, (held, key))

    # --- classes --------------------------------------------------------------------------------------------------

    def _look_at_class(self, kind: type, *, makes: bool = False) -> None:
        """Look at class attributes and methods that code names, and at the methods that Python calls itself.

        ``makes``: the code may make objects of the class. The class itself may be an object of one of the user's own.
        """
        if not is_of_package(type(kind)):
            self._look_at_class(type(kind))
        elif type(kind) is not type:  # as that of an enumeration, which gives its members
            self._look_at_methods(kind.__name__, type(kind), kind)
        if issubclass(kind, datetime.date):
            self._unnamed += [(name, functools.partial(self._refuse, CLOCK)) for name in NOW]
        is_called = issubclass(kind, torch.autograd.Function)  # by PyTorch: it runs both passes
        for base in kind.__mro__:
            if is_of_package(base) or (id(base), makes) in self._seen_classes:
                continue
            self._seen_classes.add((id(base), makes))
            self.classes.append(vars(base))
            for name, member in list(vars(base).items()):
                function = function_behind(member)
                if isinstance(function, types.FunctionType):
                    look = functools.partial(self._look_at_method, base, name, function)
                    implied = name in MAKING if makes else name.startswith("__") and name not in MAKING
                    look() if implied or is_called else self._unnamed.append((name, look))
                elif not name.startswith("__"):
                    self._look_at_some(base.__name__, base, [name])

    def _look_at_method(self, base: type, name: str, function: types.FunctionType) -> None:
        """Look at a function in a class, and note its place, where another may come."""
        label = f"{base.__name__}.{name}"
        self._note_single(label, base, name)
        self._waiting.append((label, function))

    def _look_at_methods(self, label: str, kind: type, own: typing.Any) -> None:
        """Look at what methods that a class has from a package read in an object: those that code names, and operators.

        ``own`` is the object's namespace; of a class, the class itself.
        """
        for name in dict.fromkeys(name for base in packages_of(kind) for name in vars(base)):
            look = functools.partial(self._look_at_read, label, kind, own, name)
            look() if name.startswith("__") and name not in MAKING else self._unnamed.append((name, look))

    def _look_at_read(self, label: str, kind: type, own: typing.Any, method: str) -> None:
        """Look at what a method and those that it calls read in an object and around them."""
        held = vars(own) if isinstance(own, type) else own
        self._look_at_some(label, own, names_read(kind, method) & held.keys() - OF_TORCH, always=held)
        self._waiting += [(label, function) for function in methods_called(kind, method)]

    # --- functions ------------------------------------------------------------------------------------------------

    def _look_at_call(self, label: str, call: typing.Any) -> None:
        if isinstance(call, functools.partial):
            self._waiting += [(label, call.func), (label, call.args), (label, call.keywords)]
        elif isinstance(call, types.MethodType):
            self._waiting += [(name_of_kind(call.__self__, label), call.__self__), (label, call.__func__)]
        elif isinstance(call, types.FunctionType):
            self._look_at_function(label, call)
        elif self._reads_its_owner(call):
            self._waiting.append((label, call.__self__))

    def _reads_its_owner(self, method: types.BuiltinMethodType) -> bool:
        """Whether a method in C reads what has it, such as the ``get`` of a dictionary and a generator's ``random``."""
        writes = self.only_reads and method.__name__ in WRITERS
        return not writes and not isinstance(method.__self__, types.ModuleType)

    def _look_at_function(self, label: str, function: types.FunctionType) -> None:
        self.functions[function] = None
        code = function.__code__
        cells = list(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._waiting += [(f"{label}.{name}", value) for name, value in vars(function).items()]
        if vars(function):
            self._look_at_dict(label, vars(function))
        if is_in_package(code.co_filename) and code.co_filename not in self._own_files:
            self._waiting += [(name, value_of_cell(cell)) for name, cell in cells]
            if is_of_other_package(function):
                self._look_at_globals_of(function)
            return
        around: list[tuple[typing.Any, str, str]] = [(cell, "", name) for name, cell in cells]
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self._note_single(f"{label}.{name}", function, name)
        codes = list(codes_of(code))
        self._waiting += [(module.__name__, module) for module in modules_imported(function, codes)]
        for part in codes:
            self._read(function, part)
        own = function.__globals__
        named_here = self._global_names(function, codes)
        around += [(own, name, name) for name in named_here if name in own or not hasattr(builtins, name)]
        asks_for_any = self.only_reads and any(map(asks_by_any_name, codes))
        for holder, name, shown in around:
            self._note_single(shown, holder, name)
            if asks_for_any:
                self._look_at_all_plain(shown, value_at(holder, name))

    def _look_at_all_plain(self, label: str, held: typing.Any) -> None:
        """Look at the plain values of an object that code may ask for by names that it makes itself."""
        if not isinstance(held, (types.ModuleType, type, torch.nn.Module)):
            own = getattr(held, "__dict__", {})
            self._look_at_some(label, own, [name for name, value in own.items() if is_plain(value)], always=own)

    def _read(self, function: types.FunctionType, code: types.CodeType) -> None:
        """Note the names in a piece of code, and what it reaches besides."""
        names = names_in(code) if self.only_reads else {*code.co_names, *names_by_text(code)}
        self._names |= names
        self._parts_of_names |= parts_of_names(code)
        self._texts |= texts_in(code)
        self._asks_by_variable |= "__dict__" in names_by_text(code)
        self._takes_all |= takes_all_attributes(code)
        if not ENVIRONMENT.isdisjoint(names):
            self._note("os.environ", os.environ, (vars(os), "environ"))
        if not LOGGERS.isdisjoint(names):
            self._note("the levels of loggers", logging.Logger.manager, (logging.Logger, "manager"))
        if makes_texts(code):
            self._names |= {"__repr__", "__str__"}
        if not self.only_reads and (any_by := ANYTHING.intersection(names_of_globals(code))):
            self._refuse(f"{function.__name__} may reach anything by {', '.join(any_by)}")
        if readers := ({"open"} - function.__globals__.keys() | FILE_READERS) & names:
            self._refuse(f"the step reads a file ({min(readers)}), and a graph would repeat what it held")

    def _global_names(self, function: types.FunctionType, codes: list[types.CodeType]) -> typing.Iterable[str]:
        names = names_of_globals(function.__code__, READS_GLOBAL if self.only_reads else USES_GLOBAL)
        if "globals" not in names:
            return names
        texts = [text for code in codes for text in code.co_consts if isinstance(text, str)]
        return [*names, *(text for text in texts if text in function.__globals__)]

    def _look_at_globals_of(self, function: types.FunctionType) -> None:
        """Look at the plain values that a function of a package reads among its module's names."""
        own = function.__globals__
        for name in names_of_globals(function.__code__, USES_GLOBAL):
            if name in own and (is_plain(own[name]) or (self.only_reads and isinstance(own[name], CONTAINERS))):
                self._note_single(name, own, name)

    # --- places ---------------------------------------------------------------------------------------------------

    def _note_single(self, label: str, holder: typing.Any, name: typing.Any) -> None:
        """Note one place of a namespace whose other places may not matter."""
        self.singles.append((holder, name))
        self._note(label, value_at(holder, name), (holder, name))

    def _note(self, label: str, value: typing.Any, place: Place) -> None:
        """Note what a place holds, and look into it later."""
        while label in self.noted:
            label += "'"
        self.noted[label] = value, place
        self._texts |= {value} if type(value) is str else set()
        self.clocks += [place] if is_clock(value) else []
        self._waiting.append((label, value))


def found_in(*calls: typing.Any) -> Walk:
    """The values, tensors and objects that models, losses and other functions read when they are called."""
    for kept in (places_of_methods, names_read):
        kept.cache_clear()  # a class may have got other methods
    return Walk(*calls)


def name_of_kind(thing: typing.Any, otherwise: str = "the step") -> str:
    """The name of an object's class, in place of a variable that holds it; of a function or a class another one."""
    return otherwise if isinstance(thing, (types.FunctionType, type)) else type(thing).__name__
