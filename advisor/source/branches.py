"""The conditions that decide whether a node of a program runs, told by the nodes around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

Branch = tuple[ast.AST, str]

# A loop that breaks off ran every step until then; one that continues skips the rest of this step alone.
_DIVERTS = (ast.Continue, ast.Return)
_BLOCKS = ("body", "orelse", "finalbody")
# Conditions that are told or compared in one file: some seconds' work.
_MOST = 5_000_000


class TooMuchError(Exception):
    """A program has more conditions around its nodes than can be read in a few seconds."""


class Branches:
    """Tells the conditions around nodes. ``parents`` has the parent of each node; ``spent`` counts what was told."""

    def __init__(self, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._parents = parents
        self._guards: dict[ast.AST, Sequence[Branch]] = {}
        self._read: set[ast.AST] = set()
        self._spent = 0

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor with its child on the way to the node, from the inside out. Raises TooMuchError."""
        child = node
        while (parent := self._parents.get(child)) is not None:
            self.spend(1)
            yield parent, child
            child = parent

    def between(self, node: ast.AST, root: ast.AST) -> frozenset[Branch]:
        """The conditions between a node and ``root`` that decide whether it runs. Raises TooMuchError."""
        found: set[Branch] = set()
        for parent, child in self.above(node):
            found.update(_condition(parent, child))
            guards = self._before(parent, child)
            self.spend(len(guards))
            found.update(guards)
            if parent is root:
                break
        return frozenset(found)

    def spend(self, count: int) -> None:
        """Count what is read. Raises TooMuchError when it is too much."""
        self._spent += count
        if self._spent > _MOST:
            raise TooMuchError

    def _before(self, parent: ast.AST, child: ast.AST) -> Sequence[Branch]:
        """The conditions before a statement in its block that may skip the rest of it."""
        if parent not in self._read:
            self._read.add(parent)
            for block in (getattr(parent, field, None) for field in _BLOCKS):
                if isinstance(block, list):
                    self._read_block(block)
        return self._guards.get(child, ())

    def _read_block(self, block: Sequence[ast.AST]) -> None:
        guards: tuple[Branch, ...] = ()
        for statement in block:
            if guards:
                self._guards[statement] = guards
            if isinstance(statement, ast.If) and any(_diverts(part) for part in (statement.body, statement.orelse)):
                self.spend(len(guards))
                guards = (*guards, (statement, "guard"))


def is_main_guard(node: ast.AST) -> bool:
    """Whether a node is ``if __name__ == "__main__":``."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )


def _condition(parent: ast.AST, child: ast.AST) -> Iterator[Branch]:
    match parent:
        case ast.If() | ast.IfExp():
            if child is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                yield parent, "then" if child in body else "else"
        case ast.BoolOp(values=[_, *rest]) if child in rest:
            yield parent, "and"
        case ast.ExceptHandler() | ast.match_case():
            yield parent, "case"


def _diverts(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _DIVERTS)
