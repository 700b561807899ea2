"""Ranking: which candidates are recommended, in which order, and what may enter the stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from advisor.catalog import Catalog
from advisor.records import Facts, Numerics, Recommendation, TrialRecord, Value, Verdict
from advisor.session.control import Decision

CONTROL = "control"


def best_per_recipe(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The fastest value of each recipe that is faster than the baseline, the fastest recipe first."""
    best: dict[str, TrialRecord] = {}
    for record in records:
        if record.verdict is not Verdict.FASTER or record.candidate.recipe == CONTROL:
            continue
        known = best.get(record.candidate.recipe)
        if known is None or rate(record) > rate(known):
            best[record.candidate.recipe] = record
    return sorted(best.values(), key=rate, reverse=True)


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
        for rank, record in enumerate(best_per_recipe(records), start=1)
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
    peak = record.result.peak_reserved_bytes
    if memory_limit_bytes is not None and peak is not None and peak > memory_limit_bytes:
        return False
    return decision is Decision.ACCEPTED or not exceeds(catalog, facts, record, allow)


def rate(record: TrialRecord) -> float:
    """Samples per second, 0 for what was not measured."""
    return record.samples_per_s or 0.0
