"""What is tried: which candidates there are, which of them wait, and which are passed over, each with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from advisor.experiment import events
from advisor.experiment.bounds import hopeless, pointless
from advisor.experiment.context import SessionContext
from advisor.experiment.ranking import CONTROL
from advisor.experiment.schedule import Schedule, needs_consent, schedule, waits
from advisor.records import Candidate, Facts, Objective, Value, WorkloadFacts
from advisor.settings import Settings


class Planning:
    """The candidates of a session, as far as they are known: the stack's company may make recipes propose more.

    ``waiting`` are those that cannot be part of the stack as things stand. ``passed_over`` are the recipes that are not
    tried alone unless the person accepts them, each with the reason.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._candidates: tuple[Candidate, ...] = ()
        self._skipped: dict[str, str] = {}
        self.waiting: list[Candidate] = []
        self.passed_over: dict[str, str] = {}

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate that is or will be tried."""
        return self._candidates

    def plan(self) -> Schedule:
        """What is tried, and when. What the profile shows to be hopeless is passed over, unless it was asked for."""
        request, facts = self._context.request, self._context.facts
        proposals = self._context.catalog.propose(facts, only=request.only, skip=(*request.skip, CONTROL))
        skipped = {recipe: reason for recipe, reason in proposals.skipped.items() if recipe != CONTROL}
        candidates = proposals.candidates
        hopeless_alone: dict[str, str] = {} if request.only else self._without_hope(candidates)
        if hopeless_alone:
            self.passed_over = self._but_usual(hopeless_alone, candidates)
            skipped |= self.passed_over
            candidates = tuple(c for c in candidates if c.recipe not in self.passed_over)
        if not candidates:
            self._context.warn(self._nothing_to_try(skipped))
        planned = schedule(
            self._context.catalog,
            facts,
            candidates,
            allow=request.allow,
            objective=request.objective,
            decision=self._context.decisions.of,
            hints=self._context.hints.settings,
            doubtful=hopeless_alone,
        )
        self.waiting = list(planned.later)
        self._tell(planned.all, skipped)
        self._context.progress.trials_left = len(planned.all) - len(planned.later)
        return planned

    def pass_over_hopeless(self) -> None:
        """Pass over what cannot gain more than the noise, once more is known of that; not what was asked for."""
        if not self._context.request.only:
            self.passed_over |= self._but_usual(self._without_hope(self._candidates), self._candidates)

    def proposed_for(self, stack: Settings) -> list[Candidate]:
        """What recipes propose in the stack's company only: an attention kernel that needs half precision, say."""
        request, facts = self._context.request, facts_under(self._context.facts, stack)
        proposals = self._context.catalog.propose(facts, only=request.only, skip=(*request.skip, CONTROL))
        planned = {candidate.name for candidate in self._candidates}
        new = [c for c in proposals.candidates if c.name not in planned and c.key not in stack]
        added = tuple(c for c in new if not (c.already_on or c.recipe in self.passed_over or self._waits(facts, c)))
        if added:
            proposing = {candidate.recipe for candidate in added}
            skipped = {recipe: why for recipe, why in self._skipped.items() if recipe not in proposing}
            self._tell((*self._candidates, *added), skipped)
        return list(added)

    def applies(self, candidate: Candidate, settings: Mapping[str, Value]) -> bool:
        """Whether a recipe would propose a candidate to somebody who has these settings (and not its own) already."""
        others = Settings(settings).without(candidate.key)
        return self._context.catalog.proposes(candidate, facts_under(self._context.facts, others))

    def is_usual(self, candidate: Candidate) -> bool:
        """Whether many workloads of this mode gain from a candidate."""
        return self._context.catalog[candidate.recipe].is_usual(candidate.value, self._context.facts.workload.mode)

    def is_for_memory_only(self, candidate: Candidate) -> bool:
        """Whether a candidate saves memory and speeds nothing up, where the objective is another."""
        recipe = self._context.catalog[candidate.recipe]
        return recipe.saves_memory and not recipe.attacks and not self._saves_memory_first

    @property
    def _saves_memory_first(self) -> bool:
        return self._context.request.objective is Objective.MEMORY

    def untried(self, planned: Schedule) -> list[Candidate]:
        """What has no trial of its own by now, because there was no time or it could not have shown anything."""
        alone = (*planned.prime, *planned.company, *planned.rest)
        return [candidate for candidate in alone if not self._context.was_measured(candidate)]

    def is_quick(self, candidate: Candidate) -> bool:
        """Whether an expensive candidate is one of those that are tried before the rest."""
        catalog = self._context.catalog
        hinted = self._context.hints.settings.get(candidate.key) == candidate.value
        return hinted or (catalog.cost(candidate.settings) <= 1 and not catalog[candidate.recipe].fallback)

    def no_longer_waiting(self) -> Iterator[Candidate]:
        """What waited for the person's consent, and has it now: taken from what waits."""
        for candidate in list(self.waiting):
            if not self._waits(self._context.facts, candidate):
                self.waiting.remove(candidate)
                self._context.progress.trials_left += 1
                yield candidate

    def _waits(self, facts: Facts, candidate: Candidate) -> bool:
        decision = self._context.decisions.of(candidate.recipe)
        return waits(self._context.catalog, facts, candidate, allow=self._context.request.allow, decision=decision)

    def _tell(self, candidates: tuple[Candidate, ...], skipped: dict[str, str]) -> None:
        self._candidates, self._skipped = candidates, skipped
        catalog, facts, allow = self._context.catalog, self._context.facts, self._context.request.allow
        consent = tuple(c.name for c in self.waiting if needs_consent(catalog, facts, c, allow=allow))
        self._context.progress.has_plan = bool(candidates)
        self._context.emit(events.TrialsPlanned(candidates, skipped, consent))

    def _but_usual(self, reasons: Mapping[str, str], candidates: Iterable[Candidate]) -> dict[str, str]:
        """Those of the hopeless that are so in company too: what most workloads gain from may help once others have."""
        usual = {candidate.recipe for candidate in candidates if self.is_usual(candidate)}
        return {recipe: why for recipe, why in reasons.items() if recipe not in usual}

    def _without_hope(self, candidates: Iterable[Candidate]) -> dict[str, str]:
        """The recipes among the candidates that cannot serve the objective, each with the reason."""
        catalog, objective = self._context.catalog, self._context.request.objective
        bounded = hopeless(catalog, self._context.facts.profile, candidates, self._context.judge.noise_floor)
        if self._saves_memory_first:  # what the profile bounds is time
            bounded = {recipe: why for recipe, why in bounded.items() if not catalog[recipe].saves_memory}
        return bounded | pointless(objective, candidates)

    def _nothing_to_try(self, skipped: Mapping[str, str]) -> str:
        """Why no candidate is left, of those recipes that were asked for when some were."""
        named = [f"{recipe}: {skipped[recipe]}" for recipe in self._context.request.only if recipe in skipped]
        if named:
            told = f"there is nothing to try of what --only names ({'; '.join(named)})"
            return f"{told}: name others, or leave --only out"
        fewer = "; leave --skip out to try more" if self._context.request.skip else ""
        return f"there is nothing to try here: every recipe is left out, each for a reason of its own{fewer}"


def facts_under(facts: Facts, settings: Mapping[str, Value]) -> Facts:
    """The facts as they are when these settings are applied over the user's own."""
    return replace(facts, workload=_under(facts.workload, settings))


def _under(workload: WorkloadFacts, settings: Mapping[str, Value]) -> WorkloadFacts:
    loader, current = workload.loader, {**workload.current, **settings}
    if loader is not None and "data.num_workers" in settings:
        workers = int(settings["data.num_workers"])
        loader = replace(loader, num_workers=workers, persistent_workers=workers > 0)
        current.setdefault("data.persistent_workers", workers > 0)  # num_workers sets that too
    return replace(workload, loader=loader, current=current)
