"""The waterfall of a session's stack: from the baseline to the stack, the contribution and the memory of each setting.

The app and the HTML report draw it. Pure functions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes_change, format_gain, format_ms, format_ratio, interval_or_words
from advisor.recipe.settings import Settings
from advisor.records import Comparison, StackRecord, TrialRecord, Value, Verdict
from advisor.report.charts import Bar, Bars, Tone, log_axis

_SPEED_UPS = (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
# A rest that is smaller than this, as a ratio, is rounding. Unitless.
_NEGLIGIBLE = 1.005
# A product of contributions that is so far above the stack, as a ratio, would draw bars far beyond it. Unitless.
_MUCH = 1.1
_TOGETHER = "together"
_IN_ORDER = "Setting by setting, in the order of the search."
_OVERLAP = "Each bar runs from the stack without a setting to the stack: what the settings do overlaps."


@dataclass(frozen=True, slots=True)
class Step:
    """One bar: from ``start`` to ``end``, both speed-ups over the baseline.

    ``contribution`` is None where the setting was not measured apart; ``alone`` is what it does by itself, where that
    is known. ``peak_bytes`` are the peaks without the setting and with it. A step without a ``key`` is the settings
    together.
    """

    name: str
    start: float
    end: float
    key: str = ""
    contribution: Comparison | None = None
    alone: Comparison | None = None
    peak_bytes: tuple[int, int] | None = None


def waterfall(state: SessionState) -> list[Step]:
    """The steps from the baseline to the stack; none while there is no stack with a figure.

    Each begins where the one before ends. Where they overlap all end at the stack, and each begins where the stack
    would be without its setting.
    """
    stack = state.stack
    if stack is None or not stack.settings or stack.comparison is None:
        return []
    steps, reached, peaks = list[Step](), 1.0, _peaks(stack, state)
    for key in _in_order(stack, state):
        step = _step(key, stack, state, reached, peaks)
        steps.append(step)
        reached = step.end
    if _overlap(stack.comparison, steps):
        total = stack.comparison.speedup
        return [replace(step, start=total * step.start / step.end, end=total) for step in steps]
    rest = stack.comparison.speedup / reached
    if max(rest, 1 / rest) > _NEGLIGIBLE and not stack.comparison.is_open:
        known = all(step.contribution and not step.contribution.is_open for step in steps)
        steps.append(Step(_TOGETHER if known else "not attributed", reached, stack.comparison.speedup))
    return steps


def _overlap(stack: Comparison, steps: Sequence[Step]) -> bool:
    """Whether the settings do much less together than one by one, so that their bars all end at the stack."""
    return not stack.is_open and math.prod(step.end / step.start for step in steps if step.key) > _MUCH * stack.speedup


def _peaks(stack: StackRecord, state: SessionState) -> dict[Settings, int]:
    """The peak of all settings of which the stack consists, in bytes: of parts of it, the baseline and itself."""
    alone = {Settings(record.settings): record.result for record in state.trials.values() if record.alone}
    baseline = {Settings(): state.baseline.result} if state.baseline else {}
    results = {**baseline, **alone, Settings(stack.settings): stack.result}
    parts = {settings: point.peak_reserved_bytes for settings, point in state.combinations.items()}
    parts |= {settings: peak for settings, result in results.items() if (peak := result.peak_reserved_bytes)}
    return {settings: peak for settings, peak in parts.items() if settings.items() <= stack.settings.items()}


def memory_on_the_stack(key: str, state: SessionState) -> tuple[int, int] | None:
    """The peaks in bytes without a setting of the stack and with it, beside others of the stack; None where unknown."""
    return _added_bytes(key, _peaks(state.stack, state)) if state.stack else None


def _added_bytes(key: str, peaks: Mapping[Settings, int]) -> tuple[int, int] | None:
    """The peaks without a setting and with it, on as much of the stack as was measured both ways."""
    known = [
        (rest, peaks[settings])
        for settings in sorted(peaks, key=len, reverse=True)
        if key in settings and (rest := peaks.get(Settings({k: v for k, v in settings.items() if k != key})))
    ]
    return known[0] if known else None


def _step(key: str, stack: StackRecord, state: SessionState, start: float, peaks: Mapping[Settings, int]) -> Step:
    record, peak = _record_of(key, stack.settings[key], state), _added_bytes(key, peaks)
    if record is None:
        return Step(key.rpartition(".")[2], start, start, key, peak_bytes=peak)
    own = record.contribution
    if own is None and record.alone and len(stack.settings) == 1:
        own = stack.comparison
    alone = record.comparison if record.alone else None
    factor = own.speedup if own and not own.is_open else 1.0
    return Step(record.candidate.recipe, start, start * factor, key, own, alone, peak)


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


def waterfall_chart(state: SessionState) -> Bars | None:
    """A bar for each setting of the stack, in the order in which they were added."""
    steps, stack, baseline = waterfall(state), state.stack, state.baseline
    if not any(step.contribution for step in steps) or stack is None or stack.comparison is None or baseline is None:
        return None
    before = format_ms(stack.baseline_step_ms or baseline.step_ms)
    bars = [
        Bar("baseline", 1.0, 1.0, before, Tone.BASELINE, is_mark=True),
        *(_bar(step) for step in steps),
        _stack_bar(stack, stack.comparison, baseline.result.peak_reserved_bytes),
    ]
    ends = [end for bar in bars for end in (bar.start, bar.end)]
    axis = log_axis("speed-up over the baseline", ends, lambda tick: f"{tick:g}x", _SPEED_UPS)
    overlap = _overlap(stack.comparison, steps)
    words = f"From {before} to {format_ms(stack.step_ms)} a step. {_OVERLAP if overlap else _IN_ORDER}"
    return Bars("What each setting adds", words, axis, tuple(bars), overlap)


def _stack_bar(stack: StackRecord, comparison: Comparison, baseline_bytes: int | None) -> Bar:
    memory = f"memory {format_bytes_change(stack.result.peak_reserved_bytes, baseline_bytes)}"
    end, told = 1.0 if comparison.is_open else comparison.speedup, (format_ms(stack.step_ms), memory)
    return Bar("stack", 1.0, end, interval_or_words(comparison), Tone.STACK, told, is_mark=comparison.is_open)


def _bar(step: Step) -> Bar:
    tone = _tone_of(step)
    is_mark = tone is Tone.OTHER and bool(step.key)
    details = tuple(_details(step))
    return Bar(step.name, step.start, step.end, step_words(step), tone, details, is_mark)


def step_words(step: Step) -> str:
    """The contribution of a step of the waterfall: ``+1.20x (1.15–1.25)``."""  # noqa: RUF002
    if not step.key:
        rest = step.end / step.start
        than = f" {'more' if rest > 1 else 'less'} than one by one" if step.name == _TOGETHER else ""
        return f"{'+' * (rest > 1)}{rest:.{2 if rest < 10 else 1}f}x{than}"
    return "not measured apart" if step.contribution is None else format_gain(step.contribution)


def _details(step: Step) -> Iterator[str]:
    if step.peak_bytes:
        without, with_it = step.peak_bytes
        yield f"memory {format_bytes_change(with_it, without)}"
    if step.alone:
        yield f"alone {format_ratio(step.alone)}"


def _tone_of(step: Step) -> Tone:
    if step.contribution is None or not step.contribution.verdict.is_change:
        return Tone.OTHER
    return Tone.FASTER if step.contribution.verdict is Verdict.FASTER else Tone.SLOWER
