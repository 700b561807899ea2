"""The training loop of a watched script: which of its loops is measured, and a round of it as a step."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from advisor.python.loops import FoundLoop, loops_around
from advisor.python.trees import value_of
from advisor.step.loader import length_of
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.heads import Head
from advisor.workloads.scripts.running import ScriptStep
from advisor.workloads.scripts.seen import Seen


class NoLoopError(Exception):
    """Raised, with the reason, where no loop of a script can be measured."""


def training_loop(seen: Seen) -> FoundLoop:
    """The loop that the first update was made in. Raises NoLoopError where no source has one that fits.

    With a loader it is the innermost loop that reads the loader; else the innermost one around the update.
    """
    found = loops_around_update(seen)
    if not found:
        raise NoLoopError("no loop in the script's own code stands around the update of the weights")
    return next((loop for loop in found if loop.runs(seen.reads)), found[0])


def loops_around_update(seen: Seen) -> list[FoundLoop]:
    """All loops of the script's own that the first update was made in, innermost first.

    Else those by which a library reads the loader, and not those in which it calls a function that does.
    """
    users = [where for where in seen.frames if where.is_users]
    if found := [loop for at, where in enumerate(users) for loop in loops_around(where, users[:at])]:
        return found
    reading = {code for code, _ in seen.reads}
    inner = itertools.takewhile(lambda one: not (one.is_users and one.code in reading), seen.frames)
    of_library = (loop for where in inner if where.code in reading for loop in loops_around(where))
    return [loop for loop in of_library if loop.runs(seen.reads)]


def optimizers_named(statements: Iterable[ast.AST], names: dict[str, Any], context: type) -> list[Optimizer]:
    """The optimizers that statements read (``ast.Load``), or make (``ast.Store``)."""
    nodes = (node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute))
    found = (value_of(node, names) for node in nodes if isinstance(node.ctx, context))
    return [value for value in found if isinstance(value, Optimizer)]


def step_of(loop: FoundLoop, seen: Seen) -> tuple[ScriptStep, Any]:
    """The rounds of the script as ``step(batch) -> loss``, and what feeds them: the loader, or numbers."""
    assert seen.pause is not None, "the script was left in a loop"
    heads: list[Head] = []
    for one in loops_around_update(seen):
        heads += filter(None, [Head.latest.get((one.code, one.statement.lineno))])
        if optimizers_named(one.beside, one.where.names, ast.Store):  # a loop around it, as of several seeds
            break
    for head in heads:
        head.counts_to = None if seen.loader is None else length_of(seen.loader)
        head.goes_on = head is heads[-1]
    step = ScriptStep(seen.script, loop.place, seen.pause, seen.iterators, seen.optimizers)
    step.loop = loop
    return step, numbers() if seen.loader is None else seen.loader


def numbers() -> GivenBatches:
    """The argument of a step that makes its batches itself."""
    return GivenBatches(itertools.count, "the script's own loop")
