"""From the baseline to the stack as bars, one for each setting. Pure functions."""

from __future__ import annotations

import math

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes_change, format_interval, format_ms, format_ratio
from advisor.records import Verdict
from advisor.report.waterfall import Step, waterfall
from advisor.tui.text import DIM, MARKS, shortened

_NAME = 18
_LEAST_BAR = 12
_WIDEST_BAR = 46
_WIDE_FIGURE, _FIGURE = 66, 30
_LEAST_WIDE_BAR = 24


def waterfall_text(state: SessionState, width: int) -> Content:
    """The baseline, a line for each setting of the stack, and the stack; empty while no contribution is known."""
    steps = waterfall(state)
    stack, baseline = state.stack, state.baseline
    if not any(step.contribution for step in steps) or stack is None or stack.comparison is None or baseline is None:
        return Content("")
    wide = width >= _NAME + _LEAST_WIDE_BAR + _WIDE_FIGURE + 3
    room = max(_LEAST_BAR, min(_WIDEST_BAR, width - _NAME - (_WIDE_FIGURE if wide else _FIGURE) - 3))
    axis = _Axis([1.0, stack.comparison.speedup, *(ratio for step in steps for ratio in (step.start, step.end))], room)
    before = format_ms(stack.baseline_step_ms or baseline.step_ms)
    lines = [_line("baseline", axis.mark(1.0), Content.styled(before, DIM))]
    lines += [_line(step.name, _bar(step, axis), _figure(step, state, wide=wide)) for step in steps]
    whole = Step("stack", 1.0, stack.comparison.speedup)
    told = Content.assemble((format_interval(stack.comparison), "bold"), f"  {format_ms(stack.step_ms)}")
    return Content("\n").join([*lines, _line("stack", axis.bar(whole, "$accent"), told)])


class _Axis:
    """Speed-ups on a logarithmic line of so many cells."""

    def __init__(self, ratios: list[float], cells: int) -> None:
        logs = [math.log(ratio) for ratio in ratios]
        self._low, self._span = min(logs), max(logs) - min(logs) or 1.0
        self._cells = cells

    def place(self, ratio: float) -> int:
        return round((math.log(ratio) - self._low) / self._span * (self._cells - 1))

    def mark(self, ratio: float) -> Content:
        at = self.place(ratio)
        return Content.assemble(" " * at, ("▏", DIM), " " * (self._cells - at - 1))

    def bar(self, step: Step, style: str) -> Content:
        low, high = sorted((self.place(step.start), self.place(step.end)))
        slower = step.end < step.start
        length = max(1, high - low)
        low = min(low, self._cells - length)
        filled = ("▒" if slower else "█") * length
        return Content.assemble(" " * low, (filled, style), " " * (self._cells - low - length))


def _bar(step: Step, axis: _Axis) -> Content:
    if step.key and step.contribution is None:
        return axis.mark(step.start)
    if not step.key:
        return axis.bar(step, "$secondary")
    verdict = step.contribution.verdict if step.contribution else Verdict.NO_DIFFERENCE
    if verdict is Verdict.NO_DIFFERENCE:
        return axis.mark(step.start)
    return axis.bar(step, f"${MARKS[verdict][1]}")


def _figure(step: Step, state: SessionState, *, wide: bool) -> Content:
    if not step.key:
        rest = step.end / step.start
        return Content.styled(f"+{rest:.2f}x together" if rest > 1 else f"{rest:.2f}x: they overlap", DIM)
    if step.contribution is None:
        told = Content.styled("not measured apart", DIM)
    elif step.contribution.verdict is Verdict.NO_DIFFERENCE:
        told = Content.styled("no measurable difference", DIM)
    else:
        colour = MARKS[step.contribution.verdict][1]
        told = Content.styled(f"+{format_interval(step.contribution)}", f"bold ${colour}")
    if not wide:
        return told
    own = state.baseline.result.peak_reserved_bytes if state.baseline else None
    beside = [f"memory {format_bytes_change(step.peak_bytes, own)}"] if step.peak_bytes and own else []
    beside += [f"alone {format_ratio(step.alone)}"] if step.alone else []
    return told + Content.styled("".join(f"  {text}" for text in beside), DIM)


def _line(name: str, bar: Content, figure: Content) -> Content:
    return Content.assemble(f"{shortened(name, _NAME):<{_NAME}} ", bar, "  ", figure)
