"""Ladders: recipes whose values are tried in order until one is no better than those before it, as numbers of workers.

Pure functions. A rung is one value of such a recipe.
"""

from collections.abc import Collection, Iterable, Sequence

from advisor.experiment.known import Known
from advisor.records import Candidate, Outcome, TrialRecord

# A ladder that gains less than this from one value to the next has passed its knee.
_SMALLEST_CLIMB = 0.02
# Largest addition of an interval to a rate, as a factor: processes differ by more, and a ladder has to end.
_MOST_BENEFIT_OF_DOUBT = 1.01


def is_next_rung(known: Known, candidate: Candidate) -> bool:
    """Whether all values of a ladder before this one were tried, and the last of them was worth it."""
    records = [known.record(rung) for rung in _rungs_before(known, candidate)]
    measured = [record for record in records if record is not None]
    if not records or len(measured) < len(records):
        return not records
    return goes_on(measured[-1], measured, known.plan.candidates, known.judge.baseline_rate)


def why_ended(known: Known, candidate: Candidate) -> str:
    """The reason that a value is not tried: the last tried value before it; empty where none was tried."""
    records = (known.record(rung) for rung in reversed(_rungs_before(known, candidate)))
    return next((end_of_ladder(record) for record in records if record is not None), "")


def is_neighbour(known: Known, candidate: Candidate) -> bool:
    """Whether a value is next to the one that the stack has; also where one of the two is not on the ladder."""
    rungs = sorted(c.value for c in known.plan.candidates if c.recipe == candidate.recipe)
    present = known.stack[candidate.key]
    if present not in rungs or candidate.value not in rungs:
        return True
    return abs(rungs.index(present) - rungs.index(candidate.value)) == 1


def _rungs_before(known: Known, candidate: Candidate) -> list[Candidate]:
    """The values of a ladder that are tried before this one; none where the recipe is no ladder."""
    if not known.plan.recipe(candidate).ladder:
        return []
    rungs = [c for c in known.plan.candidates if c.recipe == candidate.recipe and not c.already_on]
    return rungs[: rungs.index(candidate)] if candidate in rungs else []


def goes_on(
    record: TrialRecord, records: Iterable[TrialRecord], planned: Collection[Candidate], baseline_rate: float
) -> bool:
    """Whether the next value of a ladder is tried after this one; arguments as of :func:`climbs`."""
    return climbs(record, records, planned, baseline_rate) or descends(record, planned)


def climbs(
    record: TrialRecord, records: Iterable[TrialRecord], planned: Collection[Candidate], baseline_rate: float
) -> bool:
    """Whether a ladder's value may be better than every value before it, the present one included.

    The upper end of its interval decides: where steps wait for data they vary, and a ladder is not climbed again.
    One that leads down begins with the value that is expected to be best, and goes on only while it gets better.
    ``records`` and ``planned`` may be of other recipes too; ``baseline_rate`` is in samples per second.
    """
    earlier = [
        other.samples_per_s or 0.0
        for other in records
        if other.candidate.recipe == record.candidate.recipe and other.candidate != record.candidate
    ]
    best = max([baseline_rate, *earlier])
    comparison = record.comparison
    if earlier and _leads_down(_numbers(record.candidate.recipe, planned)):
        return (record.samples_per_s or 0.0) > best
    above = min(comparison.ci_high / comparison.speedup, _MOST_BENEFIT_OF_DOUBT) if comparison else 1.0
    upper = (record.samples_per_s or 0.0) * above
    return upper > (1 + _SMALLEST_CLIMB if earlier else 1.0) * best


def descends(record: TrialRecord, planned: Collection[Candidate]) -> bool:
    """Whether memory ran out on a ladder that leads down, where a smaller value may fit."""
    numbers = _numbers(record.candidate.recipe, planned)
    smaller_comes = _leads_down(numbers) and record.candidate.value != numbers[-1]
    return record.result.outcome is Outcome.OUT_OF_MEMORY and smaller_comes


def _leads_down(numbers: Sequence[float]) -> bool:
    return len(numbers) > 1 and numbers[0] > numbers[-1]


def _numbers(recipe: str, planned: Iterable[Candidate]) -> list[float]:
    """The numbers among a ladder's values, in the order in which they are planned."""
    values = (candidate.value for candidate in planned if candidate.recipe == recipe and not candidate.already_on)
    return [value for value in values if not isinstance(value, str)]


def end_of_ladder(record: TrialRecord) -> str:
    """The reason for leaving out the larger values of a ladder."""
    if record.result.outcome is Outcome.OUT_OF_MEMORY:
        return f"{record.candidate.name} ran out of memory, so larger values would too"
    if not record.result.measured:
        return f"{record.candidate.name} failed: {record.result.reason}"
    return f"{record.candidate.name} was no better than the value before it"
