"""Conclusions from a session's state, for every renderer: shares of the roof, the sweep, tried and untried candidates.

Pure functions of the state; the words are in ``formatting`` and in the reports.
"""

from dataclasses import dataclass

from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.figures.roof import ceiling_of, dtype_under, roof_share
from advisor.figures.sweep import SweepPoint, sweep_points
from advisor.records import Outcome, Profile, TrialRecord, Value, Verdict


@dataclass(frozen=True, slots=True)
class RoofShare:
    """The share, about 0 to 1, of the machine's matrix-product rate for a type that a throughput reaches."""

    share: float
    ceiling_flops_per_s: float
    dtype: str


def stack_is_unclear(state: SessionState) -> bool:
    """Whether there is a stack of which the interval leaves open whether it is faster, where speed is the objective."""
    stack = state.stack
    unclear = stack is not None and stack.comparison is not None and stack.comparison.verdict is Verdict.UNCLEAR
    return bool(state.goal.by_time and stack and stack.settings and unclear)


def settings_to_export(state: SessionState) -> dict[str, Value]:
    """The settings of the session: the stack, of which ``Known.found`` decides what is in it.

    Where several GPUs were faster, those that were measured on them, as long as the stack holds what they carry over.
    """
    stack, scaling = state.stack, state.scaling
    if scaling and scaling.settings and scaling.carried.items() <= state.stack_settings.items():
        return scaling.all_settings
    return state.stack_settings if stack and (stack.result.measured or stack.pending) else {}


def roof_shares(state: SessionState) -> tuple[RoofShare | None, RoofShare | None]:
    """The roof shares of the baseline and the stack, each of the type that it computes in; None where unknown.

    The baseline's throughput is the one timed beside the stack, where there is one: on a machine that drifts the
    session's first has no part in the speed-up.
    """
    facts, baseline = state.facts, state.baseline
    profile = facts.profile if facts else None
    if facts is None or profile is None or baseline is None:
        return None, None
    stack, size = state.stack, facts.workload.batch_size
    if stack is None or not stack.settings or stack.samples_per_s is None:
        return _reached(profile, baseline.samples_per_s, size, {}), None
    before = _reached(profile, stack.baseline_samples_per_s or baseline.samples_per_s, size, {})
    return before, _reached(profile, stack.samples_per_s, size, stack.settings)


def _reached(
    profile: Profile, samples_per_s: float, batch_size: int | None, settings: dict[str, Value]
) -> RoofShare | None:
    dtype = dtype_under(profile, settings)
    share, ceiling = roof_share(profile, samples_per_s, batch_size, dtype), ceiling_of(profile, dtype)
    return None if share is None or ceiling is None or dtype is None else RoofShare(share, ceiling, dtype)


def sweep_of(state: SessionState) -> tuple[SweepPoint, ...]:
    """The sweep over batch sizes, the baseline's own among them; empty unless at least two sizes were measured."""
    if state.baseline is None:
        return ()
    memory_bytes = state.facts.workload.device_memory_bytes if state.facts else 0
    points = sweep_points(
        state.baseline,
        state.trials.values(),
        memory_bytes=memory_bytes or None,
        latency_limit_ms=state.goal.latency_limit_ms,
    )
    return points if sum(point.samples_per_s is not None for point in points) > 1 else ()


def candidates_tried(state: SessionState) -> list[TrialRecord]:
    """The candidates that were tried. The control is none."""
    ran = (record for record in state.trials.values() if record.result.outcome is not Outcome.SKIPPED)
    return [record for record in ran if record.candidate.recipe != CONTROL]


def count_untried(state: SessionState) -> int:
    """The number of single candidates that were planned and not tried."""
    return sum(record.result.outcome is Outcome.SKIPPED for record in state.trials.values())
