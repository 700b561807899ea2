"""Whole sessions on a landscape: started, timed by the simulated clock, and judged by what was recorded.

    with replayed(landscape) as replay:
        told = run_session(replay, budget_s=120)
    told.stack_at(60)

Only the public constructor of :class:`Session` and its events are used.
"""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from advisor.experiment.events import Event, SessionFailed, StackMeasured
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.experiment.session import Session
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Facts, Numerics, TargetSpec, Value
from landscapes.landscape import ROOT, Landscape
from landscapes.replay import Replay


@dataclass(frozen=True)
class Replayed:
    """A session that was replayed; ``told`` are its events, each with its simulated second."""

    replay: Replay
    told: list[tuple[float, Event]]
    session_s: float

    def stack_at(self, moment_s: float) -> Settings:
        """The stack that the session would have recommended at a moment: empty before it had one."""
        told = (event for at_s, event in self.told if at_s <= moment_s)
        stacks = [event.record.settings for event in told if isinstance(event, StackMeasured)]
        return Settings(stacks[-1] if stacks else {})

    def share_at(self, moment_s: float) -> float:
        """The best recorded time per sample over that of the stack at a moment: 1 is the best that is known."""
        return best_known(self.replay)[1] / self.replay.predictor.smoothed_s(self.stack_at(moment_s))

    @property
    def problem(self) -> str:
        """Why the session failed; empty when it did not."""
        failures = (event for _, event in self.told if isinstance(event, SessionFailed))
        return "; ".join(f"{event.message}\n{event.details}" for event in failures)


@contextlib.contextmanager
def replayed(landscape: Landscape, *, seed: int = 0) -> Iterator[Replay]:
    """A replay with this machine taken for the landscape's: hardware, state folder, a compiler that is there."""
    found = {"CC": sys.executable, "CXX": sys.executable}  # what was recorded had one, and here nothing is compiled
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, {"PERF_ADVISOR_STATE": folder, **found}))
        found_hardware = mock.patch("advisor.experiment.session.inspect_hardware", return_value=landscape.hardware)
        stack.enter_context(found_hardware)
        yield Replay(landscape, seed=seed)


def run_session(replay: Replay, *, budget_s: float, **options: Any) -> Replayed:
    """Run a session of so many simulated seconds; ``options`` are the request's."""
    told: list[tuple[float, Event]] = []
    target = TargetSpec(replay.landscape.target, str(ROOT), batch_size=replay.landscape.batch_size)
    request = Request(target, budget_s=budget_s, **options)
    started_s = replay.clock()
    with contextlib.closing(Journal.create(request)) as journal:
        emit = lambda event: told.append((replay.clock(), event))  # noqa: E731 - the two are one thing
        Session(request, replay, emit, journal, clock=replay.clock).run()
    return Replayed(replay, told, replay.clock() - started_s)


def best_known(replay: Replay) -> tuple[Settings, float]:
    """The fastest recorded combination that could be a stack, and its seconds per sample, less their noise."""
    predictor, facts = replay.predictor, replay.landscape.facts
    allowed = [s for s in predictor.measured if may_stack(predictor.catalog, facts, s) and _is_finite(replay, s)]
    best = min(allowed, key=predictor.smoothed_s)
    return best, predictor.smoothed_s(best)


def may_stack(catalog: Catalog, facts: Facts, settings: Mapping[str, Value]) -> bool:
    """Whether settings could be what a session recommends: no declared change of results, and no bad habit."""
    recipes = catalog.in_order(settings)
    changes = any(recipe.numerics_of(value, facts.workload.mode) is Numerics.CHANGED for recipe, value in recipes)
    return not changes and not any(recipe.habit and not recipe.usual for recipe, _ in recipes)


def _is_finite(replay: Replay, settings: Settings) -> bool:
    result = replay.predictor.answer(settings).result
    return all(map(math.isfinite, (*result.losses, *result.outputs)))
