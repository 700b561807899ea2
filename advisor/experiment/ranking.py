"""Ranking: which candidates are recommended, and in which order."""

from collections.abc import Iterable, Mapping

from advisor.experiment.consent import Consent
from advisor.figures.sweep import KNEE_TOLERANCE, USABLE_MEMORY
from advisor.judging.objective import Yardstick
from advisor.records import Facts, Recommendation, TrialRecord, TrialResult, Value

CONTROL = "control"
# The name of the trial that takes the profile.
INSTRUMENTED = "baseline, instrumented"


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
    """Whether a batch size leaves no spare memory for validation, fragmentation and uneven batches."""
    peak, memory = result.peak_reserved_bytes if result else None, facts.workload.device_memory_bytes
    return "data.batch_size" in settings and bool(peak and memory) and (peak or 0) > USABLE_MEMORY * memory


def recommend(
    facts: Facts, records: Iterable[TrialRecord], by: Yardstick, stack: Mapping[str, Value], consent: Consent
) -> tuple[Recommendation, ...]:
    """The ranked recommendations: one value for each recipe that helps by the session's goal or is in the stack.

    Only values within the limits count. For numbers (batch sizes, workers, threads) it is the smallest value that is
    nearly as good as the best. A candidate that was only measured on top of a stack and then left out is listed only if
    the person can decide on it. Rejected recipes stay in the list, so that the decision can be undone.
    """
    catalog, shown = consent.catalog, dict[str, list[TrialRecord]]()
    for record in records:
        candidate, was_stacked = record.candidate, record.contribution is not None or not record.alone
        in_stack = stack.get(candidate.key) == candidate.value
        fits = by.goal.fits(record.result) and not fills_the_device(facts, record.settings, record.result)
        may_decide = candidate.recipe in consent.decisions or consent.exceeds(candidate, record.numerics)
        if candidate.recipe == CONTROL or not (fits and (record.alone or in_stack or may_decide)):
            continue
        stays = in_stack or (consent.rejects(candidate.recipe) and was_stacked)
        if (stays and record.result.measured) or by.helps(record.result, record.own_effect):
            shown.setdefault(candidate.recipe, []).append(record)
    best = [_best(group, by, stack) for group in shown.values()]
    return tuple(
        Recommendation(
            rank=rank,
            record=record,
            title=catalog[record.candidate.recipe].title,
            why=catalog[record.candidate.recipe].why(facts, record.candidate.value),
            needs_consent=consent.exceeds(record.candidate, record.numerics),
            in_stack=stack.get(record.candidate.key) == record.candidate.value,
        )
        for rank, record in enumerate(sorted(best, key=lambda record: _merit(record, by), reverse=True), start=1)
    )
