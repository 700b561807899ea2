"""Whether a session can afford the reference: the baseline's first steps in a higher precision."""

from __future__ import annotations

from dataclasses import replace

from advisor.experiment.bench import Bench
from advisor.experiment.numerics import Spread, finite
from advisor.experiment.tolerance import DEFAULT_TOLERANCE
from advisor.records import Facts, TrialResult, TrialSpec

REFERENCE = "baseline in a higher precision"
_SMALLEST_BUDGET_S = 60.0
_LONGEST_S = 15.0
_SHARE_OF_BUDGET = 0.1
# Parameters, activations and optimizer state in float64 take twice what they take in float32.
_MEMORY_FACTOR = 2.0
# A process starts, builds the model again and runs one step at least, which is seldom as fast in float64.
_START_S = 1.0
_STEP_FACTOR = 4.0


def reference_spec(bench: Bench, facts: Facts, baseline: TrialResult, spread: Spread) -> TrialSpec | None:
    """The reference's trial, or None where it would be of no use, not fit into memory, or take too long."""
    budget = bench.budget
    limit_s = min(_LONGEST_S, _SHARE_OF_BUDGET * budget.left_s)
    random = max(spread.losses, spread.outputs) > DEFAULT_TOLERANCE
    if budget.total_s < _SMALLEST_BUDGET_S or random or not finite(baseline):
        return None
    if _shortest_s(baseline) > limit_s or _MEMORY_FACTOR * (baseline.peak_reserved_bytes or 0) > _free_bytes(facts):
        return None
    return replace(bench.spec(REFERENCE, {}), reference=True, timeout_s=limit_s)


def _shortest_s(baseline: TrialResult) -> float:
    step_s = min(block.seconds / block.steps for block in baseline.blocks)
    return _START_S + (baseline.build_s or 0.0) + _STEP_FACTOR * step_s


def _free_bytes(facts: Facts) -> int:
    """What the device had free before the session."""
    gpu = facts.hardware.gpu_by_uuid(facts.workload.device_uuid)
    if gpu is not None:
        return gpu.memory_total_bytes - gpu.memory_used_bytes
    return facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes
