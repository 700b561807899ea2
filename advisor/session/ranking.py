"""Ranking: which candidates are recommended, in which order, and what may enter the stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from advisor.catalog import Catalog
from advisor.records import Facts, Numerics, Recommendation, TrialRecord, Value, Verdict
from advisor.session.control import Decision
from advisor.sweep import KNEE_TOLERANCE, USABLE_MEMORY
from advisor.sweep import RECIPE as BATCH_SIZE

CONTROL = "control"


def best_per_recipe(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The best value of each recipe that is faster than the baseline, the fastest recipe first.

    The best is the fastest; of numbers (batch sizes, workers, threads) the smallest that is nearly as fast.
    """
    faster: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.verdict is Verdict.FASTER and record.candidate.recipe != CONTROL:
            faster.setdefault(record.candidate.recipe, []).append(record)
    return sorted((_best(group) for group in faster.values()), key=rate, reverse=True)


def _best(group: list[TrialRecord]) -> TrialRecord:
    fastest = max(group, key=rate)
    if any(not isinstance(record.candidate.value, int) for record in group):
        return fastest
    near = [record for record in group if rate(record) >= (1 - KNEE_TOLERANCE) * rate(fastest)]
    return min(near, key=lambda record: record.candidate.value)


def fills_the_device(facts: Facts, record: TrialRecord) -> bool:
    """Whether a batch size leaves no room for what a trial does not run: validation, fragmentation, odd batches."""
    peak, memory = record.result.peak_reserved_bytes, facts.workload.device_memory_bytes
    return record.candidate.recipe == BATCH_SIZE and bool(peak and memory) and (peak or 0) > USABLE_MEMORY * memory


def recommend(
    catalog: Catalog, facts: Facts, records: Iterable[TrialRecord], allow: Numerics, stack: Mapping[str, Value]
) -> tuple[Recommendation, ...]:
    """The ranked recommendations: only what is faster beyond the noise."""
    return tuple(
        Recommendation(
            rank=rank,
            record=record,
            title=catalog[record.candidate.recipe].title,
            why=catalog.why(record.candidate.recipe, facts, record.candidate.value),
            needs_consent=exceeds(catalog, facts, record, allow),
            in_stack=stack.get(record.candidate.key) == record.candidate.value,
        )
        for rank, record in enumerate(
            best_per_recipe(record for record in records if not fills_the_device(facts, record)), start=1
        )
    )


def exceeds(catalog: Catalog, facts: Facts, record: TrialRecord, allow: Numerics) -> bool:
    """Whether a candidate changes more than is allowed without consent, by its declaration or as measured."""
    declared = catalog[record.candidate.recipe].numerics_of(record.candidate.value, facts.workload.mode)
    measured = record.numerics.decisive if record.numerics else declared
    return max(declared.severity, measured.severity) > allow.severity


def may_enter(
    catalog: Catalog,
    facts: Facts,
    record: TrialRecord,
    *,
    allow: Numerics,
    memory_limit_bytes: int | None,
    decision: Decision | None,
) -> bool:
    """Whether a measured candidate may be part of the stack."""
    if decision is Decision.REJECTED or not record.result.measured or record.candidate.recipe == CONTROL:
        return False
    if fills_the_device(facts, record):
        return False
    peak = record.result.peak_reserved_bytes
    if memory_limit_bytes is not None and peak is not None and peak > memory_limit_bytes:
        return False
    return decision is Decision.ACCEPTED or not exceeds(catalog, facts, record, allow)


def rate(record: TrialRecord) -> float:
    """Samples per second, 0 for what was not measured."""
    return record.samples_per_s or 0.0
