"""Ranking: which candidates are recommended, and in which order."""

from collections.abc import Collection, Iterable, Mapping

from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.figures.sweep import KNEE_TOLERANCE, USABLE_MEMORY
from advisor.judging.objective import Yardstick
from advisor.records import Facts, Recommendation, TrialRecord, TrialResult, Value

CONTROL = "control"
# The name of the trial that takes the profile.
INSTRUMENTED = "baseline, instrumented"


def best_per_recipe(
    records: Iterable[TrialRecord], by: Yardstick, stack: Mapping[str, Value] | None = None, also: Collection[str] = ()
) -> list[TrialRecord]:
    """The best value of each recipe that helps by the session's goal, or that the stack has; the best recipe first.

    ``also`` are recipes that also stay where a stack had them. Of numbers (batch sizes, workers, threads) it is the
    smallest that is nearly as good as the best.
    """
    stacked = stack or {}
    helping: dict[str, list[TrialRecord]] = {}
    for record in records:
        candidate = record.candidate
        was_stacked = record.contribution is not None or not record.alone
        stays = stacked.get(candidate.key) == candidate.value or (candidate.recipe in also and was_stacked)
        helps = (stays and record.result.measured) or by.helps(record.result, record.own_effect)
        if candidate.recipe != CONTROL and helps:
            helping.setdefault(candidate.recipe, []).append(record)
    best = [_best(group, by, stacked) for group in helping.values()]
    return sorted(best, key=lambda record: _merit(record, by), reverse=True)


def _best(group: list[TrialRecord], by: Yardstick, stack: Mapping[str, Value]) -> TrialRecord:
    if in_stack := [record for record in group if stack.get(record.candidate.key) == record.candidate.value]:
        return in_stack[0]
    best = max(group, key=lambda record: _merit(record, by))
    if any(not isinstance(record.candidate.value, int) for record in group):
        return best
    shown, ratio = _merit(best, by)
    near = [record for record in group if _merit(record, by) >= (shown, (1 - KNEE_TOLERANCE) * ratio)]
    return min(near, key=lambda record: record.candidate.value)


def _merit(record: TrialRecord, by: Yardstick) -> tuple[bool, float]:
    """The sort key of a candidate: its contribution to the stack, or its effect alone; neutral if both are unknown."""
    if not record.alone and record.contribution is None:
        return False, 1.0
    return by.merit(record.result, record.contribution or record.own_effect)


def fills_the_device(facts: Facts, settings: Mapping[str, Value], result: TrialResult | None) -> bool:
    """Whether a batch size leaves no spare memory for validation, fragmentation and odd batches."""
    peak, memory = result.peak_reserved_bytes if result else None, facts.workload.device_memory_bytes
    return "data.batch_size" in settings and bool(peak and memory) and (peak or 0) > USABLE_MEMORY * memory


def recommend(
    facts: Facts, records: Iterable[TrialRecord], by: Yardstick, stack: Mapping[str, Value], consent: Consent
) -> tuple[Recommendation, ...]:
    """The recommendations, ranked: the stack's settings, and candidates better beyond the noise and within the limits.

    A candidate that was only measured on top of a stack and left out again is not recommended, unless the person can
    decide on it. What the person rejected stays in the list, so that it can be undone.
    """
    catalog = consent.catalog
    rejected = [recipe for recipe, decision in consent.decisions.items() if decision is Decision.REJECTED]

    def is_fit(record: TrialRecord) -> bool:
        candidate = record.candidate
        if not by.goal.fits(record.result) or fills_the_device(facts, record.settings, record.result):
            return False
        if record.alone or stack.get(candidate.key) == candidate.value or candidate.recipe in consent.decisions:
            return True
        return consent.exceeds(candidate, record.numerics)

    return tuple(
        Recommendation(
            rank=rank,
            record=record,
            title=catalog[record.candidate.recipe].title,
            why=catalog[record.candidate.recipe].why(facts, record.candidate.value),
            needs_consent=consent.exceeds(record.candidate, record.numerics),
            in_stack=stack.get(record.candidate.key) == record.candidate.value,
        )
        for rank, record in enumerate(best_per_recipe(filter(is_fit, records), by, stack, rejected), start=1)
    )
