"""Conclusions from a session's state: what to export, shares of peak rates, the sweep, what was tried."""

from collections.abc import Iterable
from dataclasses import dataclass

from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.figures.roof import ceiling_of, dtype_under, roof_share
from advisor.figures.sweep import SweepPoint, sweep_points
from advisor.records import Comparison, OperatorRow, Outcome, TrialRecord, Value, Verdict


@dataclass(frozen=True, slots=True)
class RoofShare:
    """A throughput as a share, about 0 to 1, of the machine's peak rate of matrix products in a number type."""

    share: float
    ceiling_flops_per_s: float
    dtype: str


def stack_is_unclear(state: SessionState) -> bool:
    """Whether speed is the objective and the interval of the stack leaves open whether it is faster."""
    stack = state.stack
    unclear = stack is not None and stack.comparison is not None and stack.comparison.verdict is Verdict.UNCLEAR
    return bool(state.goal.by_time and stack and stack.settings and unclear)


def settings_to_export(state: SessionState) -> dict[str, Value]:
    """The settings that a session exports: those of the stack.

    Where several GPUs were faster, the settings measured on them, as long as the stack still has all that they contain.
    """
    stack, scaling = state.stack, state.scaling
    if scaling and scaling.settings and scaling.carried.items() <= state.stack_settings.items():
        return scaling.all_settings
    return state.stack_settings if stack and (stack.result.measured or stack.pending) else {}


def roof_shares(state: SessionState) -> tuple[RoofShare | None, RoofShare | None]:
    """The shares of peak rates that baseline and stack reach, for the type that each computes in; None if unknown.

    The baseline's throughput is the one timed beside the stack, where there is one, as in the speed-up.
    """
    facts, baseline, stack, profile = state.facts, state.baseline, state.stack, state.profile
    if facts is None or profile is None or baseline is None:
        return None, None
    rate, tuned_rate = baseline.samples_per_s, None
    if stack and stack.settings and stack.samples_per_s:
        rate, tuned_rate = stack.baseline_samples_per_s or rate, stack.samples_per_s
    shares: list[RoofShare | None] = []
    for samples_per_s, settings in ((rate, {}), (tuned_rate, state.stack_settings)):
        dtype = dtype_under(profile, settings)
        share = roof_share(profile, samples_per_s, facts.workload.batch_size, dtype) if samples_per_s else None
        ceiling = ceiling_of(profile, dtype)
        shares.append(RoofShare(share, ceiling, dtype) if share is not None and ceiling and dtype else None)
    return shares[0], shares[1]


def tuned_phases(state: SessionState) -> dict[str, float]:
    """The milliseconds of the phases with the stack; empty where they were not timed."""
    return state.stack.result.phases if state.stack and state.stack.settings else {}


def by_own_time(operators: Iterable[OperatorRow]) -> tuple[bool, list[OperatorRow]]:
    """The operators with the most time of their own first: on the device, or where none has any there on the host.

    The first value says whether it is on the device.
    """
    rows = list(operators)
    on_device = any(row.device_ms for row in rows)
    return on_device, sorted(rows, key=lambda row: row.device_ms if on_device else row.host_ms, reverse=True)


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


def effect_of(record: TrialRecord) -> Comparison | None:
    """A candidate's own effect on the speed; None if it was only measured with others, so that nobody knows it."""
    return record.comparison if record.alone else record.contribution


def candidates_tried(state: SessionState) -> list[TrialRecord]:
    """The candidates that were tried. The control is none."""
    ran = (record for record in state.trials.values() if record.result.outcome is not Outcome.SKIPPED)
    return [record for record in ran if record.candidate.recipe != CONTROL]


def count_untried(state: SessionState) -> int:
    """The number of single candidates that were planned and not tried."""
    return sum(record.result.outcome is Outcome.SKIPPED for record in state.trials.values())
