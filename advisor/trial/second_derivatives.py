"""Whether a workload differentiates a gradient again, as a gradient penalty does: its code is read, and not run."""

from __future__ import annotations

import types
from typing import Any

from advisor.portable.loaders import MOST_LOOKED_AT, is_of_a_library, parts_with_code
from advisor.runtime.loop import Loop

# The argument of backward() and torch.autograd.grad() that asks for it, and functions that always do.
_ASKS = "create_graph"
_FUNCTIONS = frozenset({"hessian", "hvp", "vhp"})


def differentiates_twice(loop: Loop) -> bool:
    """Whether the code of the loss, the step or the model asks for gradients of gradients."""
    waiting: list[Any] = [part for part in (loop.loss, loop.step, loop.model) if part is not None]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_LOOKED_AT:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.CodeType) and _asks(one):
            return True
        try:
            waiting += [*parts_with_code(one), *_of_modules(one)]
        except Exception:  # noqa: S112 - an object of any class may refuse to be looked through
            continue
    return False


def _asks(code: types.CodeType) -> bool:
    keywords = [part for part in code.co_consts if isinstance(part, tuple)]  # the names of arguments are such constants
    return any(_ASKS in part for part in keywords) or not _FUNCTIONS.isdisjoint(code.co_names)


def _of_modules(one: Any) -> list[Any]:
    """The objects that a function reads in modules of the user's: ``losses.penalty``."""
    if not isinstance(one, types.FunctionType) or is_of_a_library(one):
        return []
    used = [one.__globals__.get(name) for name in one.__code__.co_names]
    modules = [part for part in used if isinstance(part, types.ModuleType) and not _is_library(part)]
    return [getattr(module, name, None) for module in modules for name in one.__code__.co_names]


def _is_library(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] in ("torch", "numpy", "math", "functools", "itertools")
