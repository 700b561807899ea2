"""The names that the body of a loop uses, as the lines of a draft that define them."""

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_MAIN = "__main__"
# The longest value of a name that a draft contains, in characters.
_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class UsedNames:
    """The names that statements take from around them, in order, and those of them that they bind anew."""

    needed: tuple[str, ...]
    bound_anew: tuple[str, ...]


def names_used(body: Sequence[ast.stmt], given: ast.expr | None) -> UsedNames:
    """The names that the body of a loop takes from around it; ``given`` is the target of a ``for`` loop."""
    bound = {name for name, stores in _events(given) if stores} if given is not None else set()
    needed: dict[str, None] = {}
    stored: set[str] = set()
    for name, stores in (event for statement in body for event in _events(statement)):
        if stores:
            stored.add(name)
        elif name not in bound | stored and not hasattr(builtins, name):
            needed[name] = None
    return UsedNames(tuple(needed), tuple(name for name in needed if name in stored))


def _events(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """The names in a piece of source in the order in which they are used, and whether each is bound there."""
    if isinstance(node, ast.Name):
        yield node.id, not isinstance(node.ctx, ast.Load)
        return
    if isinstance(node, ast.arg):
        yield node.arg, True
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, False
    for part in _in_order(node):
        yield from _events(part)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, True


def _in_order(node: ast.AST) -> list[ast.AST]:
    """The parts of a piece of source, those first that are run first."""
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        return [node.value, *(part for part in parts if part is not node.value)]
    if isinstance(node, ast.For | ast.comprehension):
        return [node.iter, *(part for part in parts if part is not node.iter)]
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return [*node.generators, *(part for part in parts if not isinstance(part, ast.comprehension))]
    return parts


def lines_for(names: Sequence[str], values: Mapping[str, Any], known: Mapping[int, str], script: str) -> Iterator[str]:
    """A line for each name that the draft has not: another name of the draft's, an import, a value, or a TODO.

    ``known`` are the draft's own names by the id of what they hold; ``script`` is the module to import its functions
    and classes from, empty where importing it would run it.
    """
    for name in names:
        if name in known.values():
            continue
        try:
            yield _line_for(name, values[name], known, script)
        except KeyError:
            yield f"{name} = ...  # TODO"


def _line_for(name: str, value: Any, known: Mapping[int, str], script: str) -> str:
    if id(value) in known:
        return f"{name} = {known[id(value)]}"
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    if is_literal(value) and len(repr(value)) <= _LONGEST_VALUE:
        return f"{name} = {value!r}"
    if (inspect.isclass(value) or inspect.isfunction(value)) and "." not in value.__qualname__:
        module = script if value.__module__ == _MAIN else value.__module__
        if module:
            return f"from {module} import {value.__name__}{'' if value.__name__ == name else f' as {name}'}"
        return f"{name} = ...  # TODO: copy it to here"
    return f"{name} = ...  # TODO: of class {type(value).__name__}"


def is_literal(value: object) -> bool:
    """Whether a value is a number, a word or None, or a list, a tuple or a dict of such: source can contain it."""
    if type(value) in (list, tuple, dict):
        inside: Any = value
        return all(map(is_literal, [*inside, *inside.values()] if type(value) is dict else inside))
    return isinstance(value, int | float | str | None)
