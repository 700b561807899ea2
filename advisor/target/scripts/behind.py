"""The statements behind a line in the block that it stands in: what a loop does after its update."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_LONGEST = 60  # characters of a statement as it is shown


def behind(block: Sequence[ast.stmt], line: int) -> list[str]:
    """The statements that call something after ``line``, a line of text each; those of inner blocks come first.

    Clearing the gradients is left out: a step does that itself.
    """
    around = [place for place, one in enumerate(block) if one.lineno <= line <= (one.end_lineno or one.lineno)]
    if not around:
        return []
    inner = [text for part in _blocks(block[around[-1]]) for text in behind(part, line)]
    return [*inner, *map(_shown, _called(block[around[-1] + 1 :]))]


def _called(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that call something; in place of a ``with`` those inside it."""
    for statement in filter(_calls, block):
        yield from _called(statement.body) if isinstance(statement, ast.With) else [statement]


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for node in (statement, *getattr(statement, "handlers", ())):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])


def _calls(statement: ast.stmt) -> bool:
    """Whether a statement calls anything but ``zero_grad``."""
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func).rpartition(".")[2] != "zero_grad" for call in calls)


def _shown(statement: ast.stmt) -> str:
    first, _, rest = ast.unparse(statement).partition("\n")
    text = f"{first} …" if rest else first
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
