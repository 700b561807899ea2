"""The top level of an exported file: code from ``step/``, and definitions that are hoisted from recipes' code.

A class or a function that is defined inside ``prepare`` cannot be pickled, so workers that are started afresh could not
get it.
"""

import ast
import functools
import symtable
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.step import module_text, modules_in_order, source

_MOVABLE = (ast.Import, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Names that exist inside prepare() only.
_OF_PREPARE = frozenset({"model", "optimizer", "loader", "loss_fn", "device"})
# Pieces of code whose names are kept; exports share most. Several times the statements of all portable modules.
_STATEMENTS_KEPT = 8192
# Modules of steps; the modules that these import belong to them.
STEP_MODULES = ("graphed_own_step", "launched", "device_loader")
# Of these, the modules that recipes show as code of their own.
SHOWN_BY_RECIPES = ("optimizer_options", "collector")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top level of code, with the comments above it. Two with the same text are equal.

    ``is_constant``: it assigns a value to a name. ``can_be_hoisted``: it means the same at the top of another file.
    ``lines`` are the numbers of its lines, from 0, with the empty ones below. ``binds`` has the names that it binds,
    each with a text that is the same where the name means the same. ``needs`` are the names that it uses of others.
    """

    text: str
    is_import: bool = field(compare=False)
    is_constant: bool = field(compare=False)
    can_be_hoisted: bool = field(compare=False)
    lines: range = field(compare=False)
    binds: Mapping[str, str] = field(compare=False)
    needs: frozenset[str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A recipe's code, divided: imports, constants and definitions for the top of the file, and the rest.

    ``binds`` has the names at the top, as a statement has its own.
    """

    imports: tuple[str, ...]
    constants: tuple[str, ...]
    definitions: tuple[str, ...]
    rest: str
    binds: Mapping[str, str]


def hoist(code: str, taken: Mapping[str, str], others: Collection[str] = ()) -> Hoisted:
    """Divide a recipe's code into statements for the top of the file, and the rest, which stays in ``prepare``.

    Imports, functions, classes and constants (``NAME = literal``) are hoisted. A statement stays in ``prepare``

    - where it uses a name that only ``prepare`` or the rest has;
    - where it binds a name that means something else in the file, by ``taken``;
    - where the rest uses a name that it binds and that ``others``, the other code of ``prepare``, bind as well: the
      rest would get theirs.
    """
    lines = code.splitlines()
    candidates = [one for one in statements(code) if one.can_be_hoisted]
    hoisted = [one for one in candidates if all(taken.get(name) in (None, one.binds[name]) for name in one.binds)]
    while True:
        moved = {place for one in hoisted for place in one.lines}
        rest = "\n".join(line for place, line in enumerate(lines) if place not in moved).strip("\n")
        local = _OF_PREPARE | set(bindings(rest))
        ambiguous = local | set(needs(rest)).intersection(others)
        staying = [one for one in hoisted if one.needs & local or one.binds.keys() & ambiguous]
        if not staying:
            break
        hoisted = [one for one in hoisted if one not in staying]
    return Hoisted(
        tuple(one.text for one in hoisted if one.is_import),
        tuple(one.text for one in hoisted if one.is_constant),
        tuple(one.text for one in hoisted if not one.is_import and not one.is_constant),
        rest,
        _bound_by_all(hoisted),
    )


def locals_of(function: str) -> set[str]:
    """The names that a function binds for itself, from the text of its definition."""
    table = symtable.symtable(function, "code", "exec").get_children()[0]
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}


def bindings(code: str) -> dict[str, str]:
    """The names that code binds at its top level, each with its definition if that can be moved, else with no text."""
    return dict.fromkeys(bound_by(code), "") | _bound_by_all(one for one in statements(code) if one.can_be_hoisted)


def _bound_by_all(parts: Iterable[Statement]) -> dict[str, str]:
    return {name: text for one in parts for name, text in one.binds.items()}


def import_blocks(imports: Iterable[str]) -> tuple[str, str]:
    """Import statements, each once and sorted as formatters do: those of the standard library, and the others."""
    modules: set[tuple[str, str]] = set()
    members: dict[str, set[str]] = {}
    for node in ast.parse("\n".join(imports)).body:
        if isinstance(node, ast.Import):
            modules |= {(alias.name, ast.unparse(alias)) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members.setdefault(node.module or "", set()).update(ast.unparse(alias) for alias in node.names)
    lines = [(name, f"import {text}") for name, text in sorted(modules)]
    lines += [(name, f"from {name} import {', '.join(sorted(texts))}") for name, texts in sorted(members.items())]
    standard = [text for name, text in lines if name.partition(".")[0] in sys.stdlib_module_names]
    return "\n".join(standard), "\n".join(text for _, text in lines if text not in standard)


@functools.lru_cache(maxsize=64)  # one export asks for the same pieces of code several times
def statements(code: str) -> tuple[Statement, ...]:
    """The statements at the top level of code; those that share a line with another are left out."""
    return tuple(_statements(code))


def _statements(code: str) -> Iterator[Statement]:
    lines = code.splitlines()
    body = ast.parse(code).body
    shared = Counter(place for node in body for place in _lines_of(node))
    for node in body:
        own = _lines_of(node)
        if any(shared[place] > 1 for place in own):
            continue
        above, below = own.start, own.stop
        while not isinstance(node, ast.Import | ast.ImportFrom) and above and lines[above - 1].startswith("#"):
            above -= 1
        while below < len(lines) and not lines[below].strip():
            below += 1
        text = "\n".join(lines[above : own.stop])
        yield Statement(
            text,
            is_import=isinstance(node, ast.Import | ast.ImportFrom),
            is_constant=isinstance(node, ast.Assign | ast.AnnAssign),
            can_be_hoisted=_can_be_hoisted(node),
            lines=range(above, below),
            binds=_binds(node, text),
            needs=needs(text),
        )


def _lines_of(node: ast.stmt) -> range:
    """The lines of a statement, counted from 0, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first - 1, node.end_lineno or node.lineno)


def _can_be_hoisted(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and node.module != "__future__"
    return isinstance(node, _MOVABLE) or _is_literal_constant(node)


def _is_literal_constant(node: ast.stmt) -> bool:
    """Whether a statement gives a name in capitals a literal."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return node.targets[0].id.isupper()


def _binds(node: ast.stmt, text: str) -> dict[str, str]:
    """The names that a statement binds, with text that is the same where they mean the same."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"from {node.module} import {alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        names = [(alias, alias.name.partition(".")[0]) for alias in node.names]
        return {alias.asname or top: f"import {alias.name if alias.asname else top}" for alias, top in names}
    return dict.fromkeys(bound_by(text), text)


@functools.lru_cache(maxsize=_STATEMENTS_KEPT)
def bound_by(code: str) -> tuple[str, ...]:
    """The names that code binds at its top level, without those of comprehensions, which Python 3.12 has there too."""
    symbols = symtable.symtable(code, "code", "exec").get_symbols()
    bound = [symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()]
    passing = _names_of_comprehensions(code) if len(bound) > 1 else frozenset[str]()
    return tuple(name for name in bound if name not in passing)


def _names_of_comprehensions(code: str) -> frozenset[str]:
    """The names that only the loops inside comprehensions bind at the top level of code."""
    nodes = list(_outside_of_scopes(ast.parse(code)))
    loops = [node.target for node in nodes if isinstance(node, ast.comprehension)]
    passing = Counter(node.id for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return frozenset(name for name, count in passing.items() if count == bound[name]) - defined


def _outside_of_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those under it, but for what is inside functions and classes: names there are their own."""
    yield node
    for name, value in ast.iter_fields(node):
        if name != "body" or not isinstance(node, _SCOPES):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from _outside_of_scopes(part)


@functools.lru_cache(maxsize=_STATEMENTS_KEPT)
def needs(text: str) -> frozenset[str]:
    """The names that code uses of the module around it."""
    whole = symtable.symtable(text, "code", "exec")
    found = {symbol.get_name() for symbol in whole.get_symbols() if symbol.is_referenced()}
    found -= _names_of_comprehensions(text)
    tables = whole.get_children()
    while tables:
        table = tables.pop()
        found.update(name for name in table.get_identifiers() if _is_needed(table.lookup(name)))
        tables += table.get_children()
    return frozenset(found)


def _is_needed(symbol: symtable.Symbol) -> bool:
    return symbol.is_referenced() and symbol.is_global()


@dataclass(frozen=True, slots=True)
class Library:
    """The code of ``step/`` that a file contains: import statements, the text of the definitions, and its names."""

    imports: tuple[str, ...]
    text: str
    binds: Mapping[str, str]


def library_for(codes: Iterable[str], held: Collection[str] = ()) -> Library:
    """The definitions of the step's modules that these pieces of code use, with all that the definitions use.

    Those named in ``held`` are left out: the file has them elsewhere.
    """
    every = definitions_of(STEP_MODULES)
    known = {name: parts for name, parts in every.items() if name not in held or any(one.is_import for one in parts)}
    wanted: set[str] = set()
    new = {name for code in codes for name in set(needs(code)) - set(bound_by(code))} & known.keys()
    while new:
        wanted |= new
        new = {name for one in new for part in known[one] for name in part.needs} & known.keys() - wanted
    taken = list(dict.fromkeys(part for name, parts in known.items() if name in wanted for part in parts))
    imports = [one.text for one in taken if one.is_import]
    return Library(tuple(imports), _joined([one for one in taken if not one.is_import]), _bound_by_all(taken))


def without_library(code: str) -> str:
    """A recipe's code without the modules that the top level of the file has anyway."""
    for module in SHOWN_BY_RECIPES:
        code = code.replace(source(module).strip(), "")
    return code.lstrip("\n")


@functools.cache
def definitions_of(modules: tuple[str, ...]) -> Mapping[str, Sequence[Statement]]:
    """The definitions of portable modules and those that they import, by name, each behind those that it needs.

    Raises ValueError where two modules give a name two meanings, since a file has only one place for it. Only imports
    may share a name: ``import collections`` and ``import collections.abc``.
    """
    found: dict[str, list[Statement]] = {}
    for module in modules_in_order(modules):
        for one in definitions_in(module):
            for name in one.binds:
                others = found.setdefault(name, [])
                if others and not one.is_import:
                    raise ValueError(f"{name} of step/{module}.py has another meaning in a module used with it")
                others += [one] if one not in others else []
    return found


@functools.cache
def definitions_in(module: str) -> tuple[Statement, ...]:
    """The statements of a portable module, without its docstring and without imports from this package."""
    found: list[Statement] = []
    for one in statements(module_text(module)):
        if one.is_import:
            found += _single_imports(one.text)
        elif one.binds:
            found.append(one)
    return tuple(found)


def _single_imports(text: str) -> Iterator[Statement]:
    """An import as statements with one name each; none for what exported files have no use for."""
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    if module == "__future__" or module.startswith("advisor"):
        return
    for alias in node.names:
        single = ast.ImportFrom(module, [alias], 0) if module else ast.Import([alias])
        yield from statements(ast.unparse(single))


def _joined(definitions: Iterable[Statement]) -> str:
    """The text of definitions, constants in blocks and the others two lines apart, as formatters write them."""
    text, before = "", None
    for one in definitions:
        text += ("" if before is None else "\n" if one.is_constant and before.is_constant else "\n\n\n") + one.text
        before = one
    return text
