"""The order in which candidates are tried: what most workloads gain from, the rest, compilation, and what waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from advisor.catalog import Catalog
from advisor.experiment.control import Decision
from advisor.recipe import Stage
from advisor.records import Bottleneck, Candidate, Facts, Numerics, Objective, Value
from advisor.roof import upper_bound

# Where the input is the bottleneck, what speeds it up is worth more than anything else.
_BEFORE_ALL = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
# What has to come first before a recipe that names it as a partner can show anything on such a step.
_LOADERS = frozenset({"num_workers"})


@dataclass(frozen=True, slots=True)
class Schedule:
    """Candidates by when they are tried, each group in order.

    ``prime``: alone, before there is a stack. ``company``: on top of what made loading faster, where the step waits for
    data: alone these gain nothing. ``rest``: alone, once there is a stack; the search may try usual values of these in
    company before. ``expensive``: on top of the stack. ``later``: what cannot be part of the stack, when it is
    confirmed: habits that are only priced, and what needs the person's consent.
    """

    prime: tuple[Candidate, ...] = ()
    company: tuple[Candidate, ...] = ()
    rest: tuple[Candidate, ...] = ()
    expensive: tuple[Candidate, ...] = ()
    later: tuple[Candidate, ...] = ()

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Every candidate, in order."""
        return (*self.prime, *self.company, *self.rest, *self.expensive, *self.later)


def schedule(
    catalog: Catalog,
    facts: Facts,
    candidates: Iterable[Candidate],
    *,
    allow: Numerics,
    objective: Objective = Objective.THROUGHPUT,
    decision: Callable[[str], Decision | None] = lambda recipe: None,
    hints: Mapping[str, Value] | None = None,
    doubtful: Collection[str] = (),
) -> Schedule:
    """Sort candidates into their groups. Sorting is stable, so the values of a ladder stay in order.

    ``hints`` are settings that an earlier session of this workload recommends: they come first of their groups, and
    with the first groups. ``doubtful`` names recipes that can show nothing alone, by the profile: others may change
    that.

    With memory as the objective, what is meant to save it is among the first, and before the others of its group.
    """
    memory = objective is Objective.MEMORY

    def hinted(candidate: Candidate) -> bool:
        return hints is not None and hints.get(candidate.key) == candidate.value

    groups: dict[str, list[Candidate]] = {name: [] for name in ("prime", "company", "rest", "expensive", "later")}
    for candidate in candidates:
        name = _group(catalog, facts, candidate, allow, decision(candidate.recipe))
        if name == "prime" and candidate.recipe in doubtful:
            name = "rest"
        first = hinted(candidate) or (memory and catalog[candidate.recipe].saves_memory)
        groups["prime" if name == "rest" and first else name].append(candidate)

    def order(candidate: Candidate) -> tuple[float, ...]:
        recipe = catalog[candidate.recipe]
        expected = hinted(candidate) and not recipe.ladder
        return not expected, memory and not recipe.saves_memory, *_urgency(catalog, facts, candidate)

    ordered = {name: tuple(sorted(group, key=order)) for name, group in groups.items()}
    return Schedule(**ordered)


def waits(
    catalog: Catalog, facts: Facts, candidate: Candidate, *, allow: Numerics, decision: Decision | None = None
) -> bool:
    """Whether a candidate cannot be part of the stack as things stand."""
    unasked = decision is not Decision.ACCEPTED and needs_consent(catalog, facts, candidate, allow=allow)
    recipe = catalog[candidate.recipe]
    priced_only = (
        recipe.habit and not candidate.already_on and not recipe.is_usual(candidate.value, facts.workload.mode)
    )
    return priced_only or unasked


def needs_consent(catalog: Catalog, facts: Facts, candidate: Candidate, *, allow: Numerics) -> bool:
    """Whether a candidate changes more, by its declaration, than is allowed without the person's consent."""
    declared = catalog[candidate.recipe].numerics_of(candidate.value, facts.workload.mode)
    return declared.severity > allow.severity


def _group(catalog: Catalog, facts: Facts, candidate: Candidate, allow: Numerics, decision: Decision | None) -> str:
    recipe = catalog[candidate.recipe]
    if waits(catalog, facts, candidate, allow=allow, decision=decision):
        return "later"
    if recipe.expensive:
        return "expensive"
    if recipe.habit and candidate.already_on:  # a debugging aid that was left on, say
        return "prime"
    bottleneck = facts.profile.bottleneck if facts.profile else None
    if bottleneck not in _BEFORE_ALL:
        # What does not attack the bottleneck shows nothing alone; its usual value is tried in company all the same.
        promising = bottleneck is None or bottleneck in recipe.attacks
        return "prime" if promising and recipe.is_usual(candidate.value, facts.workload.mode) else "rest"
    if bottleneck not in recipe.attacks or recipe.stage is Stage.ENVIRONMENT:
        return "rest"
    return "company" if _LOADERS & recipe.partners and not recipe.ladder else "prime"


def _urgency(catalog: Catalog, facts: Facts, candidate: Candidate) -> tuple[float, ...]:
    """What attacks the bottleneck first, ladders before switches; then fresh interpreters (seconds), then habits.

    Compilations come in the order of their promise: each takes long, and one usual value can stand for another. Among
    equals comes first what could gain most: what the profile does not bound, then by its bound.
    """
    recipe = catalog[candidate.recipe]
    bottleneck = facts.profile.bottleneck if facts.profile else None
    bound = upper_bound(facts.profile, recipe.phases) if facts.profile else None
    unusual = recipe.expensive and not recipe.is_usual(candidate.value, facts.workload.mode)
    return (
        recipe.stage is Stage.ENVIRONMENT,
        recipe.fallback,
        unusual,
        bottleneck not in recipe.attacks,
        not recipe.ladder,
        recipe.habit,
        -(bound if bound is not None else math.inf),
    )
