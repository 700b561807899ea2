"""The ``with`` blocks of PyTorch's own around a loop: a body that runs by itself enters them again."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

# Contexts that do not change what a step computes: entering one at each step would cost time, or write files.
_NOT_STATE = ("torch.profiler", "torch.autograd.profiler", "torch.utils.tensorboard", "torch.cuda.nvtx")


@dataclass(frozen=True, slots=True)
class Context:
    """An expression after ``with``, and the names of its frame."""

    code: CodeType
    names: dict[str, Any]


def contexts_of(
    blocks: Iterable[ast.With], names: dict[str, Any], file: str, value: Callable[[ast.expr, dict[str, Any]], Any]
) -> Iterator[Context]:
    """The contexts of some ``with`` blocks that set PyTorch's state, such as autocast. ``value`` reads a plain name."""
    for item in (item for block in blocks for item in block.items):
        expression = item.context_expr
        if isinstance(expression, ast.Call):
            module = getattr(value(expression.func, names), "__module__", None)
        else:
            module = type(value(expression, names)).__module__
        if isinstance(module, str) and module.split(".")[0] == "torch" and not module.startswith(_NOT_STATE):
            yield Context(compile(ast.Expression(expression), file, "eval"), names)


@contextlib.contextmanager
def entered(contexts: Iterable[Context]) -> Iterator[None]:
    """Run inside some contexts, the first one outermost."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(eval(context.code, context.names))  # noqa: S307 - it is the user's own expression
        yield
