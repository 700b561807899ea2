"""The names that Python code reads and imports, as its instructions tell; the code is not run."""

import dis
import functools
import itertools
import sys
import types
import typing
from collections.abc import Iterable, Iterator

import torch

from advisor.step.owners import is_of_package

# The instructions for a global name that is read, is set, or is either. Attributes stand among a code's names too.
READS_GLOBAL = ("LOAD_GLOBAL",)
SETS_GLOBAL = ("STORE_GLOBAL",)
USES_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
# Those by which code reads a name from around it, and an attribute of that.
READS_AROUND = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
ASKS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# Names by which code asks for an attribute whose name is a text.
BY_TEXT = {"getattr", "__getattribute__", "attrgetter", "methodcaller", "vars", "__dict__"}
ATTRIBUTE_BY_TEXT = {"getattr", "__getattribute__", "setattr", "hasattr", "delattr"}
# Those by which it takes all attributes of an object at once, by themselves and together with others.
ALL_AT_ONCE = {"asdict", "astuple"}
ALL_OF_THEM = ({"vars", "__dict__"}, {"values", "items"})
# Names in ``os`` that read the environment.
ENVIRONMENT = {"environ", "getenv"}
# Names by which code makes a text of a value, and those of functions that only show one to a person.
GIVES_TEXT = {"str", "repr", "ascii", "format", "format_map"}
SHOWS = {"print", "log", "debug", "info", "warning", "warn", "error", "exception", "critical"}
# The first letters of the instructions that end a statement, or a part of it.
ENDS_STATEMENT = ("STORE_", "RETURN_", "RAISE_", "YIELD_", "POP_TOP", "POP_JUMP", "JUMP_")
# Functions whose names are kept, at most. A count.
MOST_KEPT = 2000


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@functools.lru_cache(MOST_KEPT)
def names_of_globals(code: types.CodeType, instructions: tuple[str, ...] = READS_GLOBAL) -> tuple[str, ...]:
    """The global names that code, and the functions inside it, have in these instructions."""
    found = (one for part in codes_of(code) for one in dis.get_instructions(part))
    return tuple(dict.fromkeys(one.argval for one in found if one.opname in instructions))


@functools.lru_cache(MOST_KEPT)
def names_asked(code: types.CodeType) -> tuple[str, ...]:
    """The attributes that code asks of names from around it, such as ``options.train.size``."""
    names: dict[str, None] = {}
    for part in codes_of(code):
        asked = ""
        for one in dis.get_instructions(part):
            asked = f"{asked}.{one.argval}" if asked and one.opname in ASKS_ATTRIBUTE else ""
            names |= dict.fromkeys([asked] if asked else [])
            asked = one.argval if one.opname in READS_AROUND else asked
    return tuple(names)


@functools.lru_cache(MOST_KEPT)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The names that code reads, also by a text of its own; attributes that it only writes are left out."""
    used = [one.argval for one in dis.get_instructions(code) if one.opname not in ("STORE_ATTR", "DELETE_ATTR")]
    by_text = not BY_TEXT.isdisjoint(code.co_names)
    asked = [part for one in code.co_consts if isinstance(one, str) for part in one.split(".")] if by_text else []
    return frozenset(name for name in used if isinstance(name, str)) & set(code.co_names) | set(asked)


@functools.lru_cache(MOST_KEPT)
def names_by_text(code: types.CodeType) -> frozenset[str]:
    """The names by which code gets attributes with ``getattr`` and the like; a name for any where it computes one."""
    found: set[str] = set()
    instructions = list(dis.get_instructions(code))
    for place, one in enumerate(instructions):
        if one.argval in ATTRIBUTE_BY_TEXT and one.opname.startswith("LOAD_"):
            given = list(itertools.takewhile(lambda one: not one.opname.startswith("CALL"), instructions[place + 1 :]))
            texts = [one.argval for one in given if one.opname == "LOAD_CONST" and isinstance(one.argval, str)]
            called = instructions[place + len(given) + 1].arg or 0  # with so many arguments
            is_plain_call = called > 1 and all(one.opname.startswith(("LOAD_", "PUSH_", "PRECALL")) for one in given)
            found.update(texts if texts and is_plain_call else ["__dict__"])
    return frozenset(found)


def takes_all_attributes(code: types.CodeType) -> bool:
    """Whether code takes all attributes of an object at once: ``vars(options).values()``, ``make(**vars(options))``."""
    names = {*code.co_names, *("values" for one in dis.get_instructions(code) if one.opname == "DICT_MERGE")}
    return not ALL_AT_ONCE.isdisjoint(names) or not any(map(names.isdisjoint, ALL_OF_THEM))


@functools.lru_cache(MOST_KEPT)
def makes_texts(code: types.CodeType) -> bool:
    """Whether code makes texts of values, but for those that it raises, prints or logs."""
    return any(makes_text(statement) for statement in statements_of(code))


def statements_of(code: types.CodeType) -> Iterator[list[dis.Instruction]]:
    """The instructions of code, in parts that each end where a value is kept, given back, dropped or asked for."""
    found: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        found.append(one)
        if one.opname.startswith(ENDS_STATEMENT):
            yield found
            found = []


def makes_text(statement: list[dis.Instruction]) -> bool:
    """Whether a statement makes a text of a value that is more than shown to a person."""
    names = {one.argval for one in statement if one.opname in (*READS_AROUND, *ASKS_ATTRIBUTE)}
    kinds = {one.opname for one in statement}
    if "RAISE_VARARGS" in kinds or ("POP_TOP" in kinds and not names.isdisjoint(SHOWS)):
        return False
    texts = any(one.opname == "LOAD_CONST" and isinstance(one.argval, str) for one in statement)
    fills = texts and any(one.opname == "BINARY_OP" and one.argrepr.startswith("%") for one in statement)
    asks_kind = {"str"} if "isinstance" in names else set()
    return fills or not names.isdisjoint(GIVES_TEXT - asks_kind) or any(one.startswith("FORMAT_") for one in kinds)


def texts_in(code: types.CodeType) -> frozenset[str]:
    """The texts in code, those in tuples too."""
    parts = (one if isinstance(one, tuple) else [one] for one in code.co_consts)
    return frozenset(one for one in itertools.chain.from_iterable(parts) if isinstance(one, str))


def asks_by_any_name(code: types.CodeType) -> bool:
    """Whether code asks for an attribute whose name is no text in it: ``getattr(options, f"weight_{part}")``."""
    if "getattr" not in code.co_names:
        return False
    made = any(one.opname.startswith("FORMAT_") for one in dis.get_instructions(code))
    return made or not names_in(code) - set(code.co_names)


@functools.lru_cache(MOST_KEPT)
def parts_of_names(code: types.CodeType) -> frozenset[str]:
    """The texts with which code makes the names that it asks for: ``getattr(options, f"weight_{part}")``."""
    if "getattr" not in code.co_names:
        return frozenset()
    formats = any(one.opname.startswith("FORMAT_") for one in dis.get_instructions(code))
    texts = (one for one in code.co_consts if isinstance(one, str) and one.isidentifier() and one.strip("_"))
    return frozenset(one for one in texts if formats or one.startswith("_") or one.endswith("_"))


def calls(code: types.CodeType, name: str) -> bool:
    """Whether code calls what stands in a variable of its own, as in ``model(inputs)``."""
    read = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    if sys.version_info < (3, 13):  # there the empty slot that a call needs is pushed in front of the function
        read.reverse()
    pairs = itertools.pairwise(read)
    return any(load.startswith("LOAD_") and value == name and slot[0] == "PUSH_NULL" for (load, value), slot in pairs)


def count_unpacked(code: types.CodeType, name: str) -> int:
    """The number of parts into which code takes its argument apart, as in ``x, state = inputs``; 0 where it does not.

    What it does in a branch, or once it has given the name another value, says nothing of the argument.
    """
    jumps = {*dis.hasjrel, *dis.hasjabs}
    first = itertools.takewhile(
        lambda one: one.opcode not in jumps and (one.opname, one.argval) != ("STORE_FAST", name),
        dis.get_instructions(code),
    )
    pairs = itertools.pairwise(first)
    found = (two.arg for one, two in pairs if one.argval == name and two.opname == "UNPACK_SEQUENCE")
    return next(found, 0) or 0


@functools.cache
def names_read(kind: typing.Any, method: str) -> frozenset[str]:
    """The names that a method of a class reads, in itself and in the class's other methods that it may call."""
    codes = (code for function in methods_called(kind, method) for code in codes_of(function.__code__))
    return frozenset(name for code in codes for name in names_in(code))


def methods_called(kind: typing.Any, method: str) -> tuple[types.FunctionType, ...]:
    """A method of a class and the class's other methods that it may call, properties too."""
    members = (function_behind(vars(base).get(name)) for base, name in places_of_methods(kind, method))
    return tuple(dict.fromkeys(one for one in members if isinstance(one, types.FunctionType)))


@functools.cache
def places_of_methods(kind: typing.Any, method: str) -> tuple[tuple[type, str], ...]:
    """The classes and names where a method of a class stands and those that it may call, or others that hide them."""
    found: dict[tuple[type, str], None] = {}
    seen: set[str] = set()
    names = {method, "__call__"}
    while names:
        name = names.pop()
        seen.add(name)
        bases = [base for base in kind.__mro__ if base is not torch.nn.Module]
        functions = [function_behind(vars(base).get(name)) for base in bases]
        codes = [code for one in functions if isinstance(one, types.FunctionType) for code in codes_of(one.__code__)]
        found |= dict.fromkeys((base, name) for base in bases) if codes else {}
        names |= {name for code in codes for name in names_in(code)} - seen
    return tuple(found)


def modules_imported(function: types.FunctionType, codes: Iterable[types.CodeType]) -> list[types.ModuleType]:
    """The modules that a function imports, by a statement or by a name, or reads off ``sys.modules["..."]``."""
    package = function.__globals__.get("__package__") or ""
    names: dict[str, None] = {}
    for code in codes:
        found = [one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"]
        if not {"import_module", "__import__", "modules"}.isdisjoint(code.co_names):
            found += [one for one in code.co_consts if isinstance(one, str)]
        for name in found:
            parts = name.split(".")
            names.update(dict.fromkeys(".".join(parts[: place + 1]) for place in range(len(parts))))
            names[f"{package}.{name}"] = None  # where the statement is a relative one
    return [sys.modules[name] for name in names if isinstance(sys.modules.get(name), types.ModuleType)]


def function_behind(member: typing.Any) -> typing.Any:
    """The function behind a property, a class method or a static method of a class; another member itself."""
    return getattr(member, "fget", getattr(member, "func", getattr(member, "__func__", member)))


def hidden_in(kind: type, own: dict[str, typing.Any]) -> list[str]:
    """The names of data in a user's class that a value in the namespace of an object would hide."""
    return [
        name
        for base in kind.__mro__
        if not is_of_package(base)
        for name, value in vars(base).items()
        if name not in own and is_data_of_class(name, value)
    ]


def is_data_of_class(name: str, value: typing.Any) -> bool:
    """Whether what a class has by this name is data of its own, and no method, class or part of the language."""
    is_code = isinstance(value, type) or hasattr(type(value), "__get__")  # a loss or a layer is called, and is data
    return not name.startswith(("__", "_abc_")) and not is_code
