"""The charts of a session: the HTML report draws all of them, the app only the phases."""

import math
from statistics import median

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_ms, format_percent, format_rate
from advisor.figures.sweep import knee_of
from advisor.records import Verdict
from advisor.report.document import Bar, Bars, Part, Stacked, Tone
from advisor.report.figures import block_words, sweep_of, tuned_phases
from advisor.report.rows import ranking

_TONES: dict[Verdict, Tone] = {Verdict.FASTER: "faster", Verdict.SLOWER: "slower"}
# The ticks of an axis of speed-ups, and the fewer ticks of an axis whose ends differ by more than _BROAD.
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
_BROAD, _BROAD_TICKS = 6, (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_MOST_BLOCKS = 60  # the blocks in a sparkline of step times: the last ones


def pictures(state: SessionState) -> tuple[Bars, ...]:
    """All charts that have figures, the most important first."""
    every = (forest_chart(state), phases_chart(state), steps_chart(state), batch_chart(state))
    return tuple(chart for chart in every if chart is not None)


class _Scale:
    """A logarithmic scale that maps positive values to places from 0 to 1, with 2 % of room at both ends."""

    def __init__(self, values: list[float]) -> None:
        known = [value for value in values if 0 < value < math.inf] or [1.0]
        self.low, self.high = min(known) / 1.02, max(known) * 1.02

    def place(self, value: float) -> float:
        within = min(max(value, self.low), self.high)
        return math.log(within / self.low) / math.log(self.high / self.low)


def forest_chart(state: SessionState) -> Bars | None:
    """The interval of every setting's speed-up, best first, with its memory; None if nothing was measured yet.

    An interval is cut off at a third and at three times its speed-up.
    """
    found = ranking(state)
    measured = [(row.name, row.figures) for row in found.rows if row.figures]
    if found.step_ms is None or not measured:
        return None
    count = len(state.stack_settings)
    shown = [*([(f"all {count} together", found.together)] if found.together and count > 1 else []), *measured]
    effects = [figures.effect for _, figures in shown]
    ends = [(max(one.ci_low, one.speedup / 3), min(one.ci_high, one.speedup * 3)) for one in effects]
    scale = _Scale([1.0, *(end for each in ends for end in each)])
    bars = [Bar("your settings", scale.place(1.0), scale.place(1.0), format_ms(found.step_ms), "baseline")]
    for (name, figures), (low, high) in zip(shown, ends, strict=True):
        tone: Tone = "stack" if figures is found.together else _TONES.get(figures.verdict, "other")
        costs = (format_ms(figures.after_ms), f"memory {figures.memory_change}")
        places, point = (scale.place(low), scale.place(high)), scale.place(figures.effect.speedup)
        bars.append(Bar(name, *places, figures.words, tone, costs, point, hollow=not figures.confirmed))
    every = _BROAD_TICKS if scale.high > _BROAD * scale.low else _TICKS
    ticks = tuple((scale.place(tick), f"{tick:g}x") for tick in every if scale.low <= tick <= scale.high)
    words = "Each bar is the interval of a speed-up; its point is hollow until the combination is confirmed. "
    words += "A plus means: compared with and without it, the others on."
    return Bars("Speed-up of every setting", words, tuple(bars), ticks, scale.place(1.0))


def phases_chart(state: SessionState) -> Bars | None:
    """The phases of the baseline's step and, if timed, of the stack's step, as stacked bars."""
    words, bars = "These steps wait after each phase, so their sum can exceed the step.", phase_bars(state)
    return Bars("Where a step goes", words, bars) if bars else None


def phase_bars(state: SessionState) -> tuple[Stacked, ...]:
    """The phases of the step before and after, as bars; empty before the profile is taken."""
    bars, before = list[Stacked](), state.profile.phases if state.profile else {}
    for name, phases in (("before", before), ("after", tuned_phases(state) if before else {})):
        total = sum(phases.values())
        parts = []
        for phase, spent_ms in phases.items():
            text = f"{format_ms(spent_ms)} {format_percent(spent_ms / total if total else None)}"
            parts.append(Part(phase.replace("_", " "), spent_ms, text))
        bars += [Stacked(name, format_ms(total), tuple(parts))] if phases else []
    return tuple(bars)


def steps_chart(state: SessionState) -> Bars | None:
    """The step times of baseline and stack: from the fastest block to the slowest, and the blocks in order."""
    own, stack = state.baseline, state.stack if state.stack_settings else None
    tones: dict[str, Tone] = {"baseline": "baseline", "combination": "stack"}
    results = {name: record.result for name, record in zip(tones, (own, stack), strict=True) if record}
    every = {name: [block.step_ms for block in result.blocks] for name, result in results.items()}
    timed = {name: times for name, times in every.items() if len(times) > 1 and min(times)}
    if not timed:
        return None
    scale, bars = _Scale([time for times in timed.values() for time in times]), []
    for name, times in timed.items():
        places = scale.place(min(times)), scale.place(max(times))
        bars.append(Bar(name, *places, format_ms(median(times)), tones[name], block_words(times, _MOST_BLOCKS)))
    words = "The median of the blocks, the fastest and the slowest, and the last blocks in their order."
    return Bars("Step times", words, tuple(bars))


def batch_chart(state: SessionState) -> Bars | None:
    """Samples per second by batch size, with the knee. A size that did not run has the reason in place of a bar."""
    points = sweep_of(state)
    most, knee = max((point.samples_per_s or 0.0 for point in points), default=0.0), knee_of(points)
    if not most:
        return None
    bars = []
    for point in points:
        at_knee, per_s = point.size == knee, point.samples_per_s or 0.0
        remarks = ("yours" if point.own else "", "knee" if at_knee else "", point.problem)
        tone: Tone = "stack" if at_knee else "baseline" if point.own else "other"
        rate = format_rate(per_s) if per_s else "did not run"
        bars.append(Bar(f"{point.size:,}", 0.0, per_s / most, rate, tone, tuple(filter(None, remarks))))
    words = "Samples per second. The knee is the smallest size that is nearly the fastest."
    return Bars("Batch sizes", words, tuple(bars))
