"""Ranking: which candidates are recommended, in which order, and what may enter the stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from advisor.catalog import Catalog
from advisor.experiment.control import Decision
from advisor.experiment.objective import Yardstick
from advisor.records import Facts, Numerics, Recommendation, TrialRecord, Value
from advisor.sweep import KNEE_TOLERANCE, USABLE_MEMORY
from advisor.sweep import RECIPE as BATCH_SIZE

CONTROL = "control"


def best_per_recipe(records: Iterable[TrialRecord], by: Yardstick) -> list[TrialRecord]:
    """The best value of each recipe that helps by the session's goal, the best recipe first.

    Of numbers (batch sizes, workers, threads) it is the smallest that is nearly as good as the best.
    """
    helping: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.candidate.recipe != CONTROL and by.helps(record.result, record.comparison):
            helping.setdefault(record.candidate.recipe, []).append(record)
    return sorted((_best(group, by) for group in helping.values()), key=lambda record: _merit(record, by), reverse=True)


def _best(group: list[TrialRecord], by: Yardstick) -> TrialRecord:
    best = max(group, key=lambda record: _merit(record, by))
    if any(not isinstance(record.candidate.value, int) for record in group):
        return best
    shown, ratio = _merit(best, by)
    near = [record for record in group if _merit(record, by) >= (shown, (1 - KNEE_TOLERANCE) * ratio)]
    return min(near, key=lambda record: record.candidate.value)


def _merit(record: TrialRecord, by: Yardstick) -> tuple[bool, float]:
    return by.merit(record.result, record.comparison)


def fills_the_device(facts: Facts, record: TrialRecord) -> bool:
    """Whether a batch size leaves no room for what a trial does not run: validation, fragmentation, odd batches."""
    peak, memory = record.result.peak_reserved_bytes, facts.workload.device_memory_bytes
    return record.candidate.recipe == BATCH_SIZE and bool(peak and memory) and (peak or 0) > USABLE_MEMORY * memory


def recommend(
    catalog: Catalog,
    facts: Facts,
    records: Iterable[TrialRecord],
    by: Yardstick,
    stack: Mapping[str, Value],
    *,
    decision: Callable[[str], Decision | None] = lambda recipe: None,
) -> tuple[Recommendation, ...]:
    """The ranked recommendations: only what is better beyond the noise by the session's goal, and within its limits.

    What was measured on top of a stack and did not stay in it is none: what it showed is the others' merit. What the
    person can decide on, or has, is told all the same.
    """

    def has_merit(record: TrialRecord) -> bool:
        candidate = record.candidate
        if record.alone or stack.get(candidate.key) == candidate.value or decision(candidate.recipe) is not None:
            return True
        return exceeds(catalog, facts, record, by.goal.allow)

    fit = [
        record
        for record in records
        if has_merit(record) and by.goal.fits(record.result) and not fills_the_device(facts, record)
    ]
    return tuple(
        Recommendation(
            rank=rank,
            record=record,
            title=catalog[record.candidate.recipe].title,
            why=catalog.why(record.candidate.recipe, facts, record.candidate.value),
            needs_consent=exceeds(catalog, facts, record, by.goal.allow),
            in_stack=stack.get(record.candidate.key) == record.candidate.value,
        )
        for rank, record in enumerate(best_per_recipe(fit, by), start=1)
    )


def exceeds(catalog: Catalog, facts: Facts, record: TrialRecord, allow: Numerics) -> bool:
    """Whether a candidate changes more than is allowed without consent, by its declaration or as measured."""
    declared = catalog[record.candidate.recipe].numerics_of(record.candidate.value, facts.workload.mode)
    measured = record.numerics.decisive if record.numerics else declared
    return max(declared.severity, measured.severity) > allow.severity


def may_enter(catalog: Catalog, facts: Facts, record: TrialRecord, by: Yardstick, decision: Decision | None) -> bool:
    """Whether a measured candidate may be part of the stack.

    Above the memory limit it may where the baseline is above it too: with others it can come below.
    """
    if decision is Decision.REJECTED or not record.result.measured or record.candidate.recipe == CONTROL:
        return False
    if fills_the_device(facts, record) or not (by.goal.fits(record.result) or by.too_large):
        return False
    return decision is Decision.ACCEPTED or not exceeds(catalog, facts, record, by.goal.allow)
