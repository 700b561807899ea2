"""The top level of an exported file: what it takes from ``portable/``, and what moves there from recipes' code.

What is defined inside ``prepare`` cannot be pickled, and so cannot be sent to workers that are started afresh.
"""

from __future__ import annotations

import ast
import functools
import symtable
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from advisor.portable import module_text, modules_in_order, source

# What only prepare() has.
_OF_PREPARE = frozenset({"model", "optimizer", "loader", "loss_fn", "device"})


@dataclass(frozen=True, slots=True)
class Parts:
    """A recipe's code: import statements, constants and definitions with the comments above them, and the rest."""

    imports: tuple[str, ...]
    constants: tuple[str, ...]
    definitions: tuple[str, ...]
    rest: str


@dataclass(frozen=True, slots=True)
class _Movable:
    """A statement that could stand at the top: its text, its lines (from 0), and the names that it binds and needs."""

    node: ast.stmt
    text: str
    lines: range
    binds: Mapping[str, str]
    needs: frozenset[str]


def split(code: str, taken: Mapping[str, str], others: Collection[str] = ()) -> Parts:
    """Split a recipe's code into the part for the top of a file that binds the names ``taken`` already, and the rest.

    Those are imports, functions, classes and constants (``NAME = literal``). One stays with the rest when it uses a
    name that only ``prepare`` or the rest has, when it binds one that has another meaning in the file, and when the
    rest uses one that it binds and that ``others`` bind inside ``prepare``: there, the name would be theirs.
    """
    lines = code.splitlines()
    movable = [one for one in _movable(code) if all(taken.get(name, text) == text for name, text in one.binds.items())]
    while True:
        moved = {place for one in movable for place in one.lines}
        rest = "\n".join(line for place, line in enumerate(lines) if place not in moved).strip("\n")
        local = _OF_PREPARE | set(bindings(rest))
        ambiguous = local | set(needs(rest)).intersection(others)
        staying = [one for one in movable if one.needs & local or one.binds.keys() & ambiguous]
        if not staying:
            break
        movable = [one for one in movable if one not in staying]
    return Parts(
        tuple(one.text for one in movable if _is_import(one.node)),
        tuple(one.text for one in movable if _is_constant(one.node)),
        tuple(one.text for one in movable if not _is_import(one.node) and not _is_constant(one.node)),
        rest,
    )


def locals_of(function: str) -> set[str]:
    """The names that a function binds for itself, from the text of its definition."""
    table = symtable.symtable(function, "code", "exec").get_children()[0]
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}


def bindings(code: str) -> dict[str, str]:
    """The names that code binds at its top level, each with its definition if that can be moved, else with no text."""
    found = dict.fromkeys(_bound(symtable.symtable(code, "code", "exec")), "")
    for one in _movable(code):
        found |= one.binds
    return found


def import_blocks(statements: Iterable[str]) -> tuple[str, str]:
    """Import statements, each once and sorted as formatters do: those of the standard library, and the others."""
    modules: set[tuple[str, str]] = set()
    members: dict[str, set[str]] = {}
    for node in ast.parse("\n".join(statements)).body:
        if isinstance(node, ast.Import):
            modules |= {(alias.name, ast.unparse(alias)) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members.setdefault(node.module or "", set()).update(ast.unparse(alias) for alias in node.names)
    lines = [(name, f"import {text}") for name, text in sorted(modules)]
    lines += [(name, f"from {name} import {', '.join(sorted(texts))}") for name, texts in sorted(members.items())]
    standard = [text for name, text in lines if name.partition(".")[0] in sys.stdlib_module_names]
    return "\n".join(standard), "\n".join(text for _, text in lines if text not in standard)


def _movable(code: str) -> Iterator[_Movable]:
    lines = code.splitlines()
    body = ast.parse(code).body
    shared = Counter(place for node in body for place in _lines_of(node))
    for node in body:
        own = _lines_of(node)
        if any(shared[place] > 1 for place in own) or not _can_move(node):
            continue
        above = own.start
        while not _is_import(node) and above and lines[above - 1].startswith("#"):
            above -= 1
        below = own.stop
        while below < len(lines) and not lines[below].strip():
            below += 1
        text = "\n".join(lines[above : own.stop])
        yield _Movable(node, text, range(above, below), _binds(node, text), frozenset(needs(text)))


def _lines_of(node: ast.stmt) -> range:
    """The lines of a statement, counted from 0, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first - 1, node.end_lineno or node.lineno)


def _can_move(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and node.module != "__future__"
    return isinstance(node, ast.Import | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or _is_constant(node)


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement gives a name in capitals a literal."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return node.targets[0].id.isupper()


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _binds(node: ast.stmt, text: str) -> dict[str, str]:
    """The names that a statement binds, with text that is the same where they mean the same."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"from {node.module} import {alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        names = [(alias, alias.name.partition(".")[0]) for alias in node.names]
        return {alias.asname or top: f"import {alias.name if alias.asname else top}" for alias, top in names}
    return dict.fromkeys(_bound(symtable.symtable(text, "code", "exec")), text)


def bound_by(code: str) -> Iterator[str]:
    """The names that a piece of code binds at its top level."""
    return _bound(symtable.symtable(code, "code", "exec"))


def _bound(table: symtable.SymbolTable) -> Iterator[str]:
    return (symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported())


def needs(text: str) -> Iterator[str]:
    """The names that a statement takes from the module that it stands in."""
    tables = [symtable.symtable(text, "code", "exec")]
    while tables:
        table = tables.pop()
        module = table.get_type() == "module"
        symbols = (symbol for symbol in table.get_symbols() if module or symbol.is_global())
        yield from (symbol.get_name() for symbol in symbols if symbol.is_referenced())
        tables += table.get_children()


# What steps consist of, with the modules that these import.
STEP_MODULES = ("graphed_own_step", "graphed_around_loss", "regions", "launched", "device_loader")
# Of these, what recipes show as code of their own.
SHOWN_BY_RECIPES = (
    ("regions",),
    ("compiled_module",),
    ("optimizer_options",),
    ("collector",),
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement at the top level of a module: its text with the comments above, and the names it binds and needs."""

    text: str
    names: frozenset[str]
    needs: frozenset[str]
    is_import: bool
    is_constant: bool


@dataclass(frozen=True, slots=True)
class Library:
    """The parts that a file takes over: import statements, and the text of the definitions."""

    imports: tuple[str, ...]
    text: str


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
    return Library(tuple(imports), _joined([one for one in taken if not one.is_import]))


def without_library(code: str) -> str:
    """A recipe's code without the modules that the top level of the file has anyway."""
    for modules in SHOWN_BY_RECIPES:
        code = code.replace(source(*modules).strip(), "")
    return code.lstrip("\n")


@functools.cache
def definitions_of(modules: tuple[str, ...]) -> Mapping[str, Sequence[Definition]]:
    """The definitions of portable modules and those that they import, by name, each behind those that it needs.

    Raises ValueError where two modules give a name two meanings, since a file has only one place for it. Only imports
    may share a name: ``import collections`` and ``import collections.abc``.
    """
    found: dict[str, list[Definition]] = {}
    for module in modules_in_order(modules):
        for one in definitions_in(module):
            for name in one.names:
                others = found.setdefault(name, [])
                if others and not one.is_import:
                    raise ValueError(f"{name} of portable/{module}.py has another meaning in a module used with it")
                others += [one] if one not in others else []
    return found


@functools.cache
def definitions_in(module: str) -> tuple[Definition, ...]:
    """The statements of a portable module, without its docstring and without imports from this package."""
    text = module_text(module)
    lines = text.splitlines()
    found: list[Definition] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += _imports(node)
        elif not isinstance(node, ast.Expr):
            found.append(_definition(node, lines))
    return tuple(found)


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Definition]:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    if module == "__future__" or module.startswith("advisor"):
        return
    for alias in node.names:
        text = f"from {module} import {ast.unparse(alias)}" if module else f"import {ast.unparse(alias)}"
        name = alias.asname or alias.name.partition(".")[0]
        yield Definition(text, frozenset({name}), frozenset(), is_import=True, is_constant=False)


def _definition(node: ast.stmt, lines: list[str]) -> Definition:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    text = "\n".join(lines[first : node.end_lineno])
    is_constant = isinstance(node, ast.Assign | ast.AnnAssign)
    return Definition(text, frozenset(bound_by(text)), frozenset(needs(text)), is_import=False, is_constant=is_constant)


def _joined(definitions: Iterable[Definition]) -> str:
    """The text of definitions, constants in blocks and the others two lines apart, as formatters write them."""
    text, before = "", None
    for one in definitions:
        text += ("" if before is None else "\n" if one.is_constant and before.is_constant else "\n\n\n") + one.text
        before = one
    return text
