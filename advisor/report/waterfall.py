"""From the baseline to the stack: what each setting contributes, in the order in which they were added.

Pure functions of the state. A contribution is how many times as fast the stack is with a setting as without it. The
contributions need not multiply to the stack's speed-up: what is left over belongs to the settings together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.experiment.state import SessionState
from advisor.records import Comparison, StackRecord, TrialRecord, Value

# A rest that is smaller than this, as a ratio, is rounding. Unitless.
_NEGLIGIBLE = 1.005


@dataclass(frozen=True, slots=True)
class Step:
    """One bar: from ``start`` to ``end``, both speed-ups over the baseline.

    ``contribution`` is None where the setting was not measured apart; ``alone`` is what it does by itself, where that
    is known. ``peak_bytes`` is the peak of the setting's own trial. A step without a ``key`` is the settings together.
    """

    name: str
    start: float
    end: float
    key: str = ""
    contribution: Comparison | None = None
    alone: Comparison | None = None
    peak_bytes: int | None = None


def waterfall(state: SessionState) -> list[Step]:
    """The steps from the baseline to the stack; none while there is no stack with a figure."""
    stack = state.stack
    if stack is None or not stack.settings or stack.comparison is None:
        return []
    steps, reached = list[Step](), 1.0
    for key in _in_order(stack, state):
        step = _step(key, stack.settings[key], state, reached)
        steps.append(step)
        reached = step.end
    rest = stack.comparison.speedup / reached
    if max(rest, 1 / rest) > _NEGLIGIBLE:
        known = all(step.contribution for step in steps)
        steps.append(Step("together" if known else "not measured apart", reached, stack.comparison.speedup))
    return steps


def _step(key: str, value: Value, state: SessionState, start: float) -> Step:
    record = _record_of(key, value, state)
    if record is None:
        return Step(key.rpartition(".")[2], start, start, key)
    own = record.contribution
    if own is None and record.alone and state.stack is not None and len(state.stack.settings) == 1:
        own = state.stack.comparison
    alone = record.comparison if record.alone else None
    peak = record.result.peak_reserved_bytes if record.alone else None
    return Step(record.candidate.recipe, start, start * (own.speedup if own else 1.0), key, own, alone, peak)


def _record_of(key: str, value: Value, state: SessionState) -> TrialRecord | None:
    measured = (record for record in state.trials.values() if record.result.measured)
    return next((record for record in measured if record.candidate.settings == {key: value}), None)


def _in_order(stack: StackRecord, state: SessionState) -> list[str]:
    """The stack's keys: by the first combination that had them, of those that came together the largest first."""
    combinations = list(state.combinations)

    def first(key: str) -> tuple[int, float]:
        value = stack.settings[key]
        places = (place for place, settings in enumerate(combinations) if settings.get(key) == value)
        record = _record_of(key, value, state)
        own = record.contribution if record else None
        return next(places, len(combinations)), -math.log(own.speedup) if own else math.inf

    return sorted(stack.settings, key=first)
