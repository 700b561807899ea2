"""Speed against memory: all that was measured and is allowed, and the front. Pure functions of a session's state.

A point is on the front when nothing is both as fast and as small: whoever wants it faster pays in memory, and whoever
wants it smaller pays in time. What one lucky run shows does not take the place of what more runs have shown.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from advisor.experiment.consent import may_use
from advisor.experiment.objective import Goal, Yardstick
from advisor.experiment.ranking import CONTROL, fills_the_device
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_change, format_ratio
from advisor.recipe.settings import Settings
from advisor.records import Comparison, ParetoPoint, StackRecord, TrialRecord, Verdict
from advisor.report.document import Code, Paragraph, Section, Table

BASELINE = "baseline"
STACK = "stack"
# A point is better known than another when its interval is narrower than this share of the other's: that of two runs is
# 0.78 of that of one.
_NARROWER = 0.85


def measured_points(state: SessionState) -> tuple[ParetoPoint, ...]:
    """The baseline, candidates measured alone that may be used, and every combination without rejected settings.

    Of settings that were measured several times the last result counts, the confirmed stack's above all. What exceeds
    the memory limit is left out where anything stays within it; the baseline, which all is held against, never is.
    """
    found = list(_points(state))
    within = [point for point in found if _fits(state.goal, point)]
    points = {Settings(point.settings): point for point in within or found}
    baseline = state.baseline
    own_bytes = baseline.result.peak_reserved_bytes if baseline else None
    own = () if own_bytes is None else (ParetoPoint(BASELINE, {}, None, own_bytes),)
    return own + tuple(point for settings, point in points.items() if settings)


def pareto_front(
    points: Iterable[ParetoPoint], *, saving_floor: float = 0.0, within: float = 0.0
) -> tuple[ParetoPoint, ...]:
    """The points that nothing else is both as fast as and as small as, the smallest first.

    Of points whose peaks differ by less than ``saving_floor`` the fastest stays, and a point has to be faster than all
    smaller ones by more than ``within``, half the width of the baseline's interval (both are shares): what nobody can
    tell apart is not a choice. Beside a better-known one a point is faster only when its whole interval is, and the
    better-known one stays in front of it.
    """
    front: list[ParetoPoint] = []
    seen: list[ParetoPoint] = []
    smallest_bytes = 0  # of the points that the last one of the front stands for
    for point in sorted(points, key=lambda one: (one.peak_reserved_bytes, -one.speedup, len(one.settings))):
        known_faster = all(_lowest(point) > other.speedup for other in seen if _is_better_known(other, point))
        seen.append(point)
        if not (known_faster and all(_is_choice_beside(point, smaller, within) for smaller in front)):
            continue
        if front and point.peak_reserved_bytes <= (1 + saving_floor) * smallest_bytes:
            front[-1] = point
        else:
            front.append(point)
            smallest_bytes = point.peak_reserved_bytes
    return tuple(front)


def _is_choice_beside(point: ParetoPoint, smaller: ParetoPoint, within: float) -> bool:
    """Whether a point is enough faster than a smaller one to be a choice beside it."""
    if _is_better_known(smaller, point):
        return _lowest(point) > smaller.speedup and point.speedup > (1 + within) * smaller.speedup
    if _is_better_known(point, smaller):
        return _lowest(smaller) <= point.speedup
    return point.speedup > (1 + within) * smaller.speedup


def _is_better_known(one: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether one point was confirmed and the other was not, or more runs are behind it; the baseline has the most."""
    if one.comparison is None or other.comparison is None:
        return other.comparison is not None
    if one.comparison.paired != other.comparison.paired:
        return one.comparison.paired
    return _width(one.comparison) < _NARROWER * _width(other.comparison)


def _lowest(point: ParetoPoint) -> float:
    return point.comparison.ci_low if point.comparison else 1.0


def _width(comparison: Comparison) -> float:
    low, high = comparison.ci_low, comparison.ci_high
    return math.log(high / low) if 0 < low <= high else math.inf  # a damaged journal may say anything


def front_of(state: SessionState) -> tuple[ParetoPoint, ...]:
    """The front of a session so far; empty before the baseline is measured.

    What is neither measurably faster nor smaller than the baseline gives its place to it: to change to that gains
    nothing.
    """
    if state.baseline is None:
        return ()
    saving_floor = Yardstick(state.goal, state.baseline).saving_floor
    points = measured_points(state)
    front = pareto_front(points, saving_floor=saving_floor, within=state.baseline.half_width)
    own = next((point for point in points if not point.settings), None)
    kept: list[ParetoPoint] = []
    for point in front:
        chosen = own if own is not None and _matches(own, point, state.goal, saving_floor) else point
        if chosen not in kept:
            kept.append(chosen)
    return tuple(kept)


def _matches(own: ParetoPoint, point: ParetoPoint, goal: Goal, saving_floor: float) -> bool:
    """Whether the baseline is as good as a point, as far as one can tell."""
    faster = point.comparison is not None and point.comparison.verdict is Verdict.FASTER
    smaller = own.peak_reserved_bytes > (1 + saving_floor) * point.peak_reserved_bytes
    return not (faster or smaller or (_fits(goal, point) and not _fits(goal, own)))


def _points(state: SessionState) -> Iterable[ParetoPoint]:
    for record in state.trials.values():
        point = _of_record(record.label, record)
        if point and record.candidate.recipe != CONTROL and _allowed(state, record):
            yield point
    rejected = {candidate.key for candidate in state.candidates.values() if candidate.recipe in state.rejected}
    yield from (point for point in state.combinations.values() if rejected.isdisjoint(point.settings))
    stack = _of_record(STACK, state.stack) if state.stack else None
    if stack:
        yield stack


def _of_record(name: str, record: TrialRecord | StackRecord) -> ParetoPoint | None:
    peak_bytes = record.result.peak_reserved_bytes
    if record.comparison is None or peak_bytes is None:
        return None
    return ParetoPoint(name, dict(record.settings), record.comparison, peak_bytes)


def _allowed(state: SessionState, record: TrialRecord) -> bool:
    if state.facts and fills_the_device(state.facts, record.settings, record.result):
        return False
    return may_use(state.decisions.get(record.candidate.recipe), record.numerics, state.goal.allow)


def _fits(goal: Goal, point: ParetoPoint) -> bool:
    return goal.memory_limit_bytes is None or point.peak_reserved_bytes <= goal.memory_limit_bytes


def pareto_sentence(state: SessionState) -> str:
    """The front in a sentence: the choice between time and memory."""
    front, count = front_of(state), len(measured_points(state))
    measured = f"{count} sets of settings were measured, your own among them."
    if any(smaller.speedup > larger.speedup for smaller, larger in pairwise(front)):
        return f"{measured} These are left; their intervals do not tell which of them is the fastest."
    if len(front) > 1:
        return f"{measured} Nothing measured is as fast and as small as one of these: faster settings take more memory."
    return f"{measured} One is both the fastest and the smallest, within the intervals."


def pareto_section(state: SessionState) -> Iterator[Section]:
    """The front of speed against memory, the smallest peak first; nothing where only the baseline was measured."""
    if len(measured_points(state)) < 2:
        return
    rows = tuple(
        (
            Code(str(Settings(point.settings)) if point.settings else "what you have"),
            format_ratio(point.comparison) if point.settings else "1x",
            format_bytes(point.peak_reserved_bytes),
            format_change(point.peak_reserved_bytes, state.baseline_bytes),
        )
        for point in front_of(state)
    )
    headings = ("Settings", "Speed-up", "Peak memory", "Change")
    table = Table(headings, rows, frozenset(headings[1:]))
    yield Section("Speed against memory", (Paragraph(pareto_sentence(state)), table))
