"""The definitions that an exported file takes from ``portable/``, word for word: those that it needs, and no others."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from advisor.export.top_level import bound_by, needs
from advisor.portable import module_text, source

# What steps consist of. A definition stands behind those that it needs when the file is imported.
STEP_MODULES = """blocks compiled_module regions nested loaders parallel launched calls losses compiling collector
    device_loader optimizer_options optimizer_steps contexts loss_call steps watching dependence capturing graphed
    graphed_around_loss own_step"""
# Of these, what recipes show as code of their own.
SHOWN_BY_RECIPES = (
    ("blocks", "compiled_module", "regions"),
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
    every = {name: one for module in STEP_MODULES.split() for one in definitions_in(module) for name in one.names}
    known = {name: one for name, one in every.items() if name not in held or one.is_import}
    wanted: set[str] = set()
    new = {name for code in codes for name in set(needs(code)) - set(bound_by(code))} & known.keys()
    while new:
        wanted |= new
        new = {name for one in new for name in known[one].needs} & known.keys() - wanted
    taken = list(dict.fromkeys(one for name, one in known.items() if name in wanted))
    imports = [one.text for one in taken if one.is_import]
    return Library(tuple(imports), _joined([one for one in taken if not one.is_import]))


def without_library(code: str) -> str:
    """A recipe's code without the modules that the top level of the file has anyway."""
    for modules in SHOWN_BY_RECIPES:
        code = code.replace(source(*modules).strip(), "")
    return code.lstrip("\n")


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
