"""The charts of a session: the app and the HTML report draw them. Pure functions.

Each is None while what it would show is not known.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_bytes,
    format_change,
    format_ms,
    format_percent,
    format_rate,
)
from advisor.figures.roof import ceiling_of
from advisor.figures.sweep import SweepPoint, knee_of
from advisor.recipe.settings import Settings
from advisor.records import Phase, Profile, TrialResult, Value, Verdict
from advisor.report.charts import (
    Axis,
    Bar,
    Bars,
    Chart,
    Line,
    Mark,
    Part,
    Plot,
    Stacked,
    StackedBars,
    Tone,
    linear_axis,
    log_axis,
    without_outliers,
)
from advisor.report.conclusions import RoofShare, roof_shares, sweep_of
from advisor.report.evidence import sweep_sentence
from advisor.report.pareto import front_of, measured_points, pareto_sentence
from advisor.report.rows import Figures, ranking

_GIB, _MIB = 1024**3, 1024**2
_CUMULATIVE = ((0.0, "0 %"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %"))
# One letter for each phase; others have their own first letter.
_INITIALS: Mapping[str, str] = {
    Phase.DATA_WAIT: "W",
    Phase.HOST_TO_DEVICE: "H",
    Phase.ZERO_GRAD: "Z",
    Phase.FORWARD: "F",
    Phase.LOSS: "L",
    Phase.BACKWARD: "B",
    Phase.OPTIMIZER: "O",
}
_TONES = {Verdict.FASTER: Tone.FASTER, Verdict.SLOWER: Tone.SLOWER}
_SPEED_UPS = (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
_PREFIXES = ("", "k", "M", "G", "T", "P")


def pictures(state: SessionState) -> tuple[Chart, ...]:
    """All charts that there is something for, the most wanted first."""
    every = (
        forest_chart(state),
        front_chart(state),
        phases_chart(state),
        roofline_chart(state),
        steps_chart(state),
        batch_chart(state),
    )
    return tuple(chart for chart in every if chart is not None)


# --- every setting ------------------------------------------------------------------------------------------------


def forest_chart(state: SessionState) -> Bars | None:
    """The interval of every setting's speed-up, best first, with its memory; None before any was measured."""
    found = ranking(state)
    measured = [(row.name, row.figures) for row in found.rows if row.figures]
    if found.step_ms is None or not measured:
        return None
    together = [_interval(f"all {len(found.settings)} together", found.together, Tone.STACK)] if found.together else []
    bars = [
        Bar("your settings", 1.0, 1.0, format_ms(found.step_ms), Tone.BASELINE, is_mark=True),
        *together,
        *(_interval(name, figures, _TONES.get(figures.verdict, Tone.OTHER)) for name, figures in measured),
    ]
    ends = [end for bar in bars for end in (bar.start, bar.end)]
    axis = log_axis("speed-up", ends, lambda tick: f"{tick:g}x", _SPEED_UPS)
    words = "Each bar is the interval of a speed-up. With a plus: with the setting against the others without it."
    return Bars("Speed-up of every setting", words, axis, tuple(bars))


def _interval(name: str, figures: Figures, tone: Tone) -> Bar:
    effect, memory = figures.effect, format_change(figures.memory_bytes[1], figures.memory_bytes[0])
    low, high = (max(end, effect.speedup / 3) for end in (effect.ci_low, min(effect.ci_high, 3 * effect.speedup)))
    details = (format_ms(figures.after_ms), *([f"memory {memory}"] if memory != MISSING else []))
    return Bar(name, low, high, figures.words, tone, details)


# --- speed against memory -----------------------------------------------------------------------------------------


def front_chart(state: SessionState, chosen: Mapping[str, Value] | None = None) -> Plot | None:
    """Peak memory to the right, speed-up upwards, with the front; ``chosen`` settings are marked.

    Numbers are ranks. Nothing that was measured is both as fast and as small as a point of the front.
    """
    known = _speeds(state)
    if len(known) < 2:
        return None
    marks = _front_marks(state, known, Settings(chosen) if chosen else None)
    unit, size = ("GiB", _GIB) if max(peak for peak, _ in known.values()) >= _GIB else ("MiB", _MIB)
    told = {settings: f"{format_bytes(peak)}, {speedup:.2f}x" for settings, (peak, speedup) in known.items()}
    drawn = tuple(
        Mark(known[settings][0] / size, known[settings][1], sign, tone, f"{label} {told[settings]}" if label else "")
        for settings, (sign, tone, label) in marks.items()
    )
    front = tuple((point.peak_reserved_bytes / size, point.speedup) for point in front_of(state))
    kept = [mark for mark in drawn if mark.tone is not Tone.OTHER]
    across = without_outliers([mark.x for mark in drawn], [mark.x for mark in kept])
    upwards = without_outliers([mark.y for mark in drawn], [mark.y for mark in kept])
    lines = (Line(front, Tone.FRONT, "front"),) if len(front) > 1 else ()
    x, y = linear_axis(f"peak memory, {unit}", across), linear_axis("speed-up", upwards, "x")
    return Plot("Speed against memory", pareto_sentence(state), x, y, lines, drawn)


def _speeds(state: SessionState) -> dict[Settings, tuple[int, float]]:
    """Peak memory and speed-up of all measured settings that may be used, and of opt-in recommendations."""
    known = {Settings(point.settings): (point.peak_reserved_bytes, point.speedup) for point in measured_points(state)}
    for item in state.recommendations:
        record, peak = item.record, item.record.result.peak_reserved_bytes
        if record.alone and record.comparison and peak:
            known[Settings(record.settings)] = (peak, record.comparison.speedup)
    return known


_Sign = tuple[str, Tone, str]


def _front_marks(
    state: SessionState, known: Mapping[Settings, tuple[int, float]], chosen: Settings | None
) -> dict[Settings, _Sign]:
    marks: dict[Settings, _Sign] = dict.fromkeys(known, ("•", Tone.OTHER, ""))

    def put(settings: Settings, sign: str, tone: Tone, label: str) -> None:
        if settings in known:
            marks.pop(settings, None)  # what is added last is drawn over the others
            marks[settings] = (sign, tone, label)

    for point in front_of(state):
        put(Settings(point.settings), "◆", Tone.FRONT, "")
    for item in reversed(state.recommendations):
        if item.record.alone:
            put(Settings(item.record.settings), str(item.rank)[-1], Tone.FASTER, item.recipe)
    if chosen and chosen in known:
        put(chosen, "◉", Tone.CHOSEN, marks[chosen][2])
    put(Settings(), "B", Tone.BASELINE, "baseline")
    if state.stack_settings:  # none: the stack is what the person has
        put(Settings(state.stack_settings), "S", Tone.STACK, "stack")
    return marks


# --- the phases of a step -----------------------------------------------------------------------------------------


def phases_chart(state: SessionState) -> StackedBars | None:
    """The phases of the baseline's step, and of the stack's where they were timed, as stacked bars on one scale."""
    profile = state.profile
    if profile is None or not profile.phases:
        return None
    bars = [_stacked("before", profile.phases)]
    after = state.stack.result.phases if state.stack and state.stack.settings else {}
    if after:
        bars.append(_stacked("after", after))
    words = "Each phase is waited for here, so that together they can take longer than a step."
    return StackedBars("Where a step goes", words, tuple(bars))


def initial_of(phase: str) -> str:
    """The letter that stands for a phase where there is no room for its name."""
    return _INITIALS.get(phase, phase[:1].upper())


def _stacked(name: str, phases: Mapping[str, float]) -> Stacked:
    total = sum(phases.values())
    parts = tuple(
        Part(phase.replace("_", " "), initial_of(phase), spent_ms, f"{format_ms(spent_ms)} {_share(spent_ms, total)}")
        for phase, spent_ms in phases.items()
    )
    return Stacked(name, format_ms(total), parts)


def _share(part: float, whole: float) -> str:
    return format_percent(part / whole if whole else None)


# --- the roof -----------------------------------------------------------------------------------------------------


def roofline_chart(state: SessionState) -> Plot | None:
    """The roofline: operations a second over operations for each byte moved, with the limits of the machine.

    The stack is drawn at the baseline's intensity: its own traffic is not counted, the work of a sample is the same.
    """
    profile = state.profile
    before, after = roof_shares(state)
    if profile is None or before is None or not profile.copy_bytes_per_s:
        return None
    if not profile.flops_per_step or not profile.moved_bytes_per_step:
        return None
    intensity = profile.flops_per_step / profile.moved_bytes_per_step
    reached = [(before, "B", Tone.BASELINE, "baseline"), *([(after, "S", Tone.STACK, "stack")] if after else [])]
    marks = tuple(_reached(intensity, share, sign, tone, name) for share, sign, tone, name in reached)
    roofs = {share.dtype: share.ceiling_flops_per_s for share in (before, after) if share}
    ridges = [peak / profile.copy_bytes_per_s for peak in roofs.values()]
    x = log_axis("arithmetic intensity, FLOP per byte", [intensity / 4, intensity * 4, *ridges], "{:g}".format)
    rates = [mark.y for mark in marks]
    y = log_axis("FLOP/s", [min(rates) / 3, 1.5 * max(roofs.values()), x.low * profile.copy_bytes_per_s], _flops)
    lines = tuple(_roof(dtype, peak, profile.copy_bytes_per_s, x) for dtype, peak in roofs.items())
    return Plot("Roofline", _roof_words(profile, intensity, before, after), x, y, lines, marks)


def _flops(rate: float) -> str:
    power = min(len(_PREFIXES) - 1, max(0, math.floor(math.log10(rate)) // 3))
    return f"{rate / 1e3**power:g} {_PREFIXES[power]}"


def _reached(intensity: float, share: RoofShare, sign: str, tone: Tone, name: str) -> Mark:
    rate = share.share * share.ceiling_flops_per_s
    return Mark(intensity, rate, sign, tone, f"{name} {format_rate(rate, 'FLOP')}")


def _roof(dtype: str, peak: float, bytes_per_s: float, x: Axis) -> Line:
    """The roof at an intensity: the lower of the memory's and the number type's limit."""
    ridge = peak / bytes_per_s
    points = ((x.low, x.low * bytes_per_s), (ridge, peak), (x.high, peak))
    return Line(points, Tone.LIMIT, f"{dtype} {format_rate(peak, 'FLOP')}")


def _roof_words(profile: Profile, intensity: float, before: RoofShare, after: RoofShare | None) -> str:
    ceiling = ceiling_of(profile, before.dtype) or before.ceiling_flops_per_s
    ridge = ceiling / (profile.copy_bytes_per_s or math.inf)
    side = "right" if intensity > ridge else "left"
    limit = "arithmetic" if intensity > ridge else "memory traffic"
    words = (
        f"{intensity:.3g} FLOP for each byte moved, {side} of the ridge at {ridge:.3g}: the limit is {limit}. "
        f"Baseline: {_of_peak(before)}."
    )
    if after is None:
        return words
    words += f" Stack: {_of_peak(after)}, drawn at the baseline's FLOP per byte, since its traffic was not counted"
    above = after.share * after.ceiling_flops_per_s > intensity * (profile.copy_bytes_per_s or math.inf)
    return f"{words}; above the slope it moves fewer bytes." if above else f"{words}."


def _of_peak(share: RoofShare) -> str:
    return f"{format_percent(share.share)} of the {share.dtype} peak"


# --- step times ---------------------------------------------------------------------------------------------------


def steps_chart(state: SessionState) -> Plot | None:
    """The distribution of step times, baseline and stack: over each time, the share of blocks that are faster.

    A steep line is a steady step; a line with a tail to the right has slow blocks.
    """
    found = _timed(state)
    if not found:
        return None
    times = [step_ms for _, values in found for step_ms in values]
    x = log_axis("time of a step, ms", times, "{:g}".format)
    y = Axis("share of blocks", 0.0, 1.0, _CUMULATIVE)
    lines = tuple(Line(_cumulative(values), tone) for tone, values in found)
    marks = tuple(
        Mark(median(values), 0.5, tone.value[0].upper(), tone, f"{tone.value} {format_ms(median(values))}")
        for tone, values in found
    )
    spreads = [f"{tone.value} {format_ms(values[0])} to {format_ms(values[-1])}" for tone, values in found]
    return Plot("Step times", f"The fastest and the slowest block of steps: {', '.join(spreads)}.", x, y, lines, marks)


def block_times(result: TrialResult) -> list[float]:
    """Milliseconds a step of each block, in the order in which they were timed."""
    return [block.step_ms for block in result.blocks]


def _timed(state: SessionState) -> list[tuple[Tone, list[float]]]:
    stack = state.stack if state.stack and state.stack.settings else None
    results = ((Tone.BASELINE, state.baseline), (Tone.STACK, stack))
    found = [(tone, sorted(block_times(record.result))) for tone, record in results if record]
    return [(tone, values) for tone, values in found if len(values) > 1 and values[0] > 0]


def _cumulative(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The staircase of a distribution: at each value the share of those up to it."""
    steps: list[tuple[float, float]] = []
    for place, value in enumerate(values):
        steps += [(value, place / len(values)), (value, (place + 1) / len(values))]
    return tuple(steps)


# --- batch sizes --------------------------------------------------------------------------------------------------


def batch_chart(state: SessionState) -> Plot | None:
    """Samples per second by batch size, with the knee; a size that did not run stands at the bottom with its reason."""
    points = sweep_of(state)
    if not points:
        return None
    ran = [point for point in points if point.samples_per_s]
    x = log_axis("batch size", [point.size for point in points], "{:,g}".format, [point.size for point in points])
    y = linear_axis("samples/s", [0.0, *(point.samples_per_s or 0.0 for point in ran)])
    knee = knee_of(points)
    line = Line(tuple((float(point.size), point.samples_per_s or 0.0) for point in ran), Tone.OTHER)
    marks = tuple(_batch_mark(point, knee) for point in sorted(points, key=lambda point: point.size == knee))
    return Plot("Batch sizes", sweep_sentence(points, state.mode), x, y, (line,), marks)


def _batch_mark(point: SweepPoint, knee: int | None) -> Mark:
    rate = point.samples_per_s
    if rate is None:
        return Mark(point.size, 0.0, "✗", Tone.SLOWER, point.problem)
    own, at_knee = "yours" if point.own else "", "knee" if point.size == knee else ""
    label = ", ".join(filter(None, (own, at_knee, point.problem, format_rate(rate) if own or at_knee else "")))
    sign, tone = ("◆", Tone.STACK) if at_knee else ("B", Tone.BASELINE) if own else ("•", Tone.OTHER)
    return Mark(point.size, rate, sign, tone, label)
