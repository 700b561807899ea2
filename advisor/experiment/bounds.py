"""Upper bounds of a candidate's gain from the profile, and the reason to pass over one that cannot clear the noise."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.experiment.objective import Goal
from advisor.figures.formatting import format_percent
from advisor.figures.roof import upper_bound
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.recipe.catalog import Catalog
from advisor.records import Candidate, Phase, Profile

# A candidate that may gain this much is tried in noisy sessions too. Share of the step.
_WORTH_TRYING = 0.02


def without_gain(
    catalog: Catalog,
    profile: Profile | None,
    candidates: Iterable[Candidate],
    noise_floor: float,
    *,
    speedup: float = 1.0,
) -> dict[str, str]:
    """The recipes among the candidates that cannot gain more than the noise, each with the reason.

    ``speedup`` is how many times as fast the rest of the step may have become: the phases weigh as much more then.
    A recipe that is on already is never among them: what it is worth shows when it is off.
    """
    if profile is None:
        return {}
    reasons: dict[str, str] = {}
    for candidate in candidates:
        phases = catalog[candidate.recipe].phases
        bound = upper_bound(profile, phases)
        if bound is None or candidate.already_on or speedup * (bound - 1) > min(noise_floor, _WORTH_TRYING):
            continue
        share = sum(profile.phases.get(phase, 0.0) for phase in phases) / profile.step_ms
        named = " and ".join(phase.value for phase in sorted(phases, key=list(Phase).index))
        reasons[candidate.recipe] = (
            f"{named} {'takes' if len(phases) == 1 else 'take'} {format_percent(share, digits=2)} of the step, so it "
            f"can gain no more than that, and gains below {format_percent(min(noise_floor, _WORTH_TRYING), digits=1)} "
            "cannot be measured here"
        )
    return reasons


def against_objective(goal: Goal, candidates: Iterable[Candidate]) -> dict[str, str]:
    """The recipes among the candidates that can only work against the objective, each with the reason."""
    larger = any(candidate.recipe == BATCH_SIZE and not candidate.already_on for candidate in candidates)
    return {BATCH_SIZE: goal.words.larger_batch} if larger and not goal.tries_larger_batches else {}
