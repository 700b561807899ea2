"""The end of a session: the reason that each candidate was left out, and the warnings that concern all of it."""

from collections.abc import Iterator

from advisor.experiment.control import ENDED, RAISE_BUDGET, Decision
from advisor.experiment.known import Known
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.moves import why_not
from advisor.figures.formatting import format_ratio
from advisor.recipe.parallel_recipe import PARALLEL
from advisor.recipe.settings import Settings
from advisor.records import Candidate


def left_out(known: Known, bench: Bench) -> Iterator[tuple[Candidate, str]]:
    """The candidates that have no result of their own, with the reasons."""
    for candidate in known.plan.candidates:
        if known.record(candidate) is None:
            yield candidate, why_not(known, candidate) or _too_late(known, candidate, bench)


def _too_late(known: Known, candidate: Candidate, bench: Bench) -> str:
    """The reason that there was no time for a candidate, with a remedy."""
    if bench.steering.ending:
        return ENDED
    if together := [s for s in known.judge.runs if s.get(candidate.key) == candidate.value]:
        why = [known.why_unusable(settings) for settings in together]
        came_to = f"it could not be used beside others: {why[-1]}" if all(why) else "it was no better beside others"
        return f"{came_to}; {RAISE_BUDGET} alone"
    needed_s = bench.expected_s(candidate.settings)
    if not bench.budget.allows(needed_s):
        return f"no time: it needs about {needed_s:.0f} s; {RAISE_BUDGET}"
    if conflict := known.plan.catalog.conflict({**known.stack, **candidate.settings}):
        return f"it cannot be combined with the stack: {conflict}"
    return f"the remaining time is reserved for confirming the stack; {RAISE_BUDGET}"


def refusals(known: Known, bench: Bench) -> Iterator[tuple[str, str]]:
    """Each accepted recipe, with a warning that it is not in what was found and why; empty where it is."""
    several = {recipe.id for recipe in known.plan.catalog if recipe.key.startswith(PARALLEL)}
    for recipe, decision in known.plan.consent.decisions.items():
        if decision is Decision.ACCEPTED and not (bench.request.wants_several and recipe in several):
            key = known.plan.catalog[recipe].key
            is_found = key in known.found and known.plan.consent.accepts(recipe, known.found[key])
            refusal = f"{recipe} is accepted, but not in the stack: {_why_refused(known, bench, recipe)}"
            yield recipe, "" if is_found else refusal


def unfinished(bench: Bench) -> str:
    """A remark on code that still compiles when the time is over, and how to go on; empty where none does."""
    if bench.has_compiled_beside() or not bench.compiling:
        return ""
    return (
        f"{bench.compiling} still compiled when the time was over, after {bench.compiling_s:.0f} s: "
        f"`--resume` with a longer --budget goes on, and finds what is done in the compiler's cache"
    )


def _why_refused(known: Known, bench: Bench, recipe: str) -> str:
    """The reason that an accepted recipe is not in the stack."""
    accepted = [c for c in known.plan.candidates if known.plan.consent.accepts(recipe, c.value) and c.recipe == recipe]
    if not accepted:
        return known.plan.skipped.get(recipe, "it has nothing to change here")
    candidate = accepted[-1]
    if (record := known.record(candidate)) is None:
        return why_not(known, candidate) or _too_late(known, candidate, bench)
    found = known.left_out.get(candidate.key, f"the speed with it is {format_ratio(record.own_effect)}")
    return known.why_unusable(Settings(record.settings)) or found
