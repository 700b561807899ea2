"""The sweep over batch sizes: its points, its knee and its table. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.figures.formatting import format_bytes, format_ms, format_rate
from advisor.records import BaselineRecord, Latency, Outcome, TrialRecord, Value, Verdict

RECIPE = "batch_size"
# A size within this share of the best rate is as good, and needs less memory and time per step.
KNEE_TOLERANCE = 0.03
# Largest share of the device's memory for a batch: fragmentation, validation and other batches need some, too.
USABLE_MEMORY = 0.9
_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One batch size: step time, samples per second and peak reserved memory; None for figures of a failed run."""

    size: int
    step_ms: float | None = None
    samples_per_s: float | None = None
    peak_reserved_bytes: int | None = None
    problem: str = ""  # why it did not run or should not be used; empty for a usable size
    own: bool = False  # whether it is the baseline's size
    undecided: bool = False  # whether its rate may equal the baseline's
    latency: Latency | None = None  # of single calls

    @property
    def usable(self) -> bool:
        """Whether it was measured and has no problem."""
        return self.samples_per_s is not None and not self.problem


def sweep_points(
    baseline: BaselineRecord,
    records: Iterable[TrialRecord],
    *,
    memory_bytes: int | None = None,
    latency_limit_ms: float | None = None,
) -> tuple[SweepPoint, ...]:
    """The points of the sweep by size, including the baseline's own; values that were skipped are left out.

    ``memory_bytes`` is the device's memory: a size whose peak is within the safety margin of it is not usable. Neither
    is a size whose calls exceed ``latency_limit_ms`` in their 95th percentile.
    """
    tried = (record for record in records if record.candidate.recipe == RECIPE and record.alone)
    measured: dict[Value | None, BaselineRecord | TrialRecord] = {baseline.result.batch_size: baseline}
    measured |= {record.candidate.value: record for record in tried if record.result.outcome is not Outcome.SKIPPED}
    points = {}
    for size, record in measured.items():
        if not (size and isinstance(size, int)):  # a damaged journal may have other values
            continue
        own, result, peak, problem = record is baseline, record.result, record.result.peak_reserved_bytes, ""
        if result.outcome is Outcome.OUT_OF_MEMORY:
            problem = "out of memory"
        elif record.samples_per_s is None:
            problem = result.reason or result.outcome.value
        elif memory_bytes is not None and peak is not None and peak > USABLE_MEMORY * memory_bytes and not own:
            problem = "leaves too little memory free"
        elif result.latency and latency_limit_ms is not None and result.latency.p95_ms > latency_limit_ms:
            problem = f"above the latency limit of {format_ms(latency_limit_ms)}"
        undecided = isinstance(record, TrialRecord) and record.verdict in (Verdict.SAME, Verdict.UNCLEAR)
        points[size] = SweepPoint(
            size, record.step_ms, record.samples_per_s, peak, problem, own, undecided, result.latency
        )
    return tuple(points[size] for size in sorted(points))


def knee_of(points: Sequence[SweepPoint]) -> int | None:
    """The smallest usable size whose rate is nearly the best; None if no size is usable.

    A size that may equal the baseline has the baseline's rate. Beyond the knee, a larger batch only costs memory and
    latency.
    """
    own = next((point.samples_per_s for point in points if point.own), None)
    rates = {point.size: (own if point.undecided else point.samples_per_s) or 0.0 for point in points if point.usable}
    best = max(rates.values(), default=0.0)
    return min((size for size, rate in rates.items() if rate >= (1 - KNEE_TOLERANCE) * best), default=None)


def sweep_rows(points: Sequence[SweepPoint]) -> list[dict[str, str]]:
    """The cells of each size by their headings. The gain is relative to the smallest size."""
    recommended = knee_of(points)
    first = next((point.samples_per_s for point in points if point.samples_per_s), None)
    rows = []
    for point in points:
        calls = point.latency
        rows.append(
            {
                "Batch": f"{point.size:,}",
                "Step": format_ms(point.step_ms),
                **{f"Call {one}": format_ms(getattr(calls, f"{one}_ms")) if calls else "" for one in _PERCENTILES},
                "Samples/s": format_rate(point.samples_per_s).removesuffix(" samples/s"),
                "Gain": f"{point.samples_per_s / first:.2f}x" if point.samples_per_s and first else "",
                "Memory": format_bytes(point.peak_reserved_bytes),
                "Remark": point.problem or ("knee" if point.size == recommended else ""),
            }
        )
    return rows
