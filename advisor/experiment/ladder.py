"""Ladders: recipes whose values are tried in order until one is no better than those before it, as numbers of workers.

Pure functions. A rung is one value of such a recipe.
"""

from advisor.experiment.known import Known
from advisor.records import Candidate, Outcome

# A ladder that gains less than this from one value to the next has passed its knee. A factor.
_LEAST_CLIMB = 1.01


def is_next_rung(known: Known, candidate: Candidate) -> bool:
    """Whether all values of a ladder before this one were tried, and the last was better than all before it.

    One that leads down begins with the value that is expected to be best, and goes on only while it gets better, or
    where memory ran out.
    """
    before = _rungs_before(known, candidate)
    tried = [record for rung in before if (record := known.record(rung)) is not None]
    if not before or len(tried) < len(before):
        return not before
    first, last = before[0].value, candidate.value
    leads_down = not isinstance(first, str) and not isinstance(last, str) and first > last
    if leads_down and tried[-1].result.outcome is Outcome.OUT_OF_MEMORY:
        return True
    *earlier, latest = (record.samples_per_s or 0.0 for record in tried)
    best = max([known.judge.speed({})[1], *earlier])
    return latest > (_LEAST_CLIMB if earlier and not leads_down else 1.0) * best


def why_ended(known: Known, candidate: Candidate) -> str:
    """The reason that a value is not tried: the last tried value before it; empty where none was tried."""
    records = (known.record(rung) for rung in reversed(_rungs_before(known, candidate)))
    record = next(filter(None, records), None)
    if record is None:
        return ""
    if record.result.outcome is Outcome.OUT_OF_MEMORY:
        return f"{record.candidate.name} ran out of memory, so larger values would too"
    if not record.result.measured:
        return f"{record.candidate.name} failed: {record.result.reason}"
    return f"{record.candidate.name} was no better than the value before it"


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
