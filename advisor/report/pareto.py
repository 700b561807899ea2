"""Speed against memory: all that was measured and is allowed, and its front. Pure functions of a session's state."""

from advisor.experiment.consent import may_use
from advisor.experiment.ranking import CONTROL, fills_the_device
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.records import ParetoPoint, TrialRecord

BASELINE = "baseline"
STACK = "stack"


def measured_points(state: SessionState) -> tuple[ParetoPoint, ...]:
    """The baseline, candidates measured alone that may be used, and every combination without rejected settings.

    Settings that were measured several times count by their last result, or by the confirmed stack's. What exceeds the
    memory limit is left out if anything stays within it, but never the baseline.
    """
    found = [point for record in state.trials.values() if (point := _of_trial(record, state))]
    rejected = {candidate.key for candidate in state.candidates.values() if candidate.recipe in state.rejected}
    found += [point for point in state.combinations.values() if rejected.isdisjoint(point.settings)]
    stack = state.stack
    if stack and stack.comparison and stack.result.peak_reserved_bytes is not None:
        found.append(ParetoPoint(STACK, dict(stack.settings), stack.comparison, stack.result.peak_reserved_bytes))
    limit = state.goal.memory_limit_bytes
    within = [point for point in found if limit is None or point.peak_reserved_bytes <= limit]
    points = {Settings(point.settings): point for point in within or found}
    own = () if state.baseline_bytes is None else (ParetoPoint(BASELINE, {}, None, state.baseline_bytes),)
    return own + tuple(point for settings, point in points.items() if settings)


def _of_trial(record: TrialRecord, state: SessionState) -> ParetoPoint | None:
    """The point of a candidate; None for the control, for what was not measured, and for what may not be used."""
    peak_bytes, candidate = record.result.peak_reserved_bytes, record.candidate
    if candidate.recipe == CONTROL or record.comparison is None or peak_bytes is None:
        return None
    if state.facts and fills_the_device(state.facts, record.settings, record.result):
        return None
    if not may_use(state.decisions.get(candidate.recipe), record.numerics, state.goal.allow):
        return None
    return ParetoPoint(record.label, dict(record.settings), record.comparison, peak_bytes)


def front_of(state: SessionState) -> tuple[ParetoPoint, ...]:
    """The points that nothing else is both as fast as and as small as, the smallest first."""
    front: list[ParetoPoint] = []
    for point in sorted(measured_points(state), key=lambda one: (one.peak_reserved_bytes, -_certain(one))):
        if not front or _certain(point) > _certain(front[-1]):
            front.append(point)
    return tuple(front)


def _certain(point: ParetoPoint) -> float:
    """The speed-up that a point counts with: the low end of its interval where it is not confirmed."""
    if point.comparison is None or point.comparison.paired:
        return point.speedup
    return max(0.0, point.comparison.ci_low)
