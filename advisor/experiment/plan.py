"""The plan of a search: the candidates, the stack that an expert would write from them, and the usual gain of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from advisor.experiment import policy
from advisor.experiment.consent import Consent
from advisor.experiment.ranking import CONTROL
from advisor.experiment.request import Request
from advisor.figures.formatting import format_percent
from advisor.figures.roof import INPUT_BOUND_SHARE, upper_bound
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.judging.judge import cached
from advisor.recipe import PARALLEL, Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import CHANGE, Candidate, Facts, Objective, Phase, Value

COMPILE_MODE, COMPILE_SCOPE = "compile.mode", "compile.scope"


@dataclass(frozen=True)
class Plan:
    """The candidates of a workload, why other recipes propose none, and which gain too little (``passed_over``)."""

    catalog: Catalog
    request: Request
    facts: Facts
    consent: Consent
    candidates: tuple[Candidate, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    passed_over: frozenset[str] = frozenset()
    hints: Mapping[str, Value] = field(default_factory=dict)  # from an earlier session; they only change the order

    def with_facts(self, facts: Facts, *, speedup: float = 1.0) -> Plan:
        """The plan for these facts and the stack's ``speedup``. Candidates that gain nothing stay only if asked for."""
        catalog, request, consent = self.catalog, self.request, self.consent
        skip = (*request.skip, CONTROL)
        proposals = catalog.propose(facts, only=request.only, skip=skip, accepted=consent.values)
        # The search over several GPUs handles these and reports them itself.
        several = {recipe.id for recipe in catalog if recipe.key.startswith(PARALLEL)}
        unsaid = {CONTROL, *(several if request.wants_several else ())}
        skipped = {recipe: reason for recipe, reason in proposals.skipped.items() if recipe not in unsaid}
        candidates = tuple(candidate for candidate in proposals.candidates if candidate.recipe not in several)
        plan = replace(self, facts=facts, candidates=candidates, skipped=skipped)
        if request.only:
            return plan
        # Usual candidates stay, since other settings may make them useful.
        spared = {c.recipe for c in candidates if plan.is_usual(c) or consent.accepts(c.recipe)}
        reasons = {c.recipe: why for c in candidates if (why := plan._why_no_gain(c, speedup))}
        over = {recipe: why for recipe, why in reasons.items() if recipe not in spared}
        left = tuple(candidate for candidate in candidates if candidate.recipe not in over)
        return replace(plan, candidates=left, skipped={**skipped, **over}, passed_over=frozenset(over))

    def _why_no_gain(self, candidate: Candidate, speedup: float) -> str:
        """The reason that a candidate cannot gain enough to count as a change; empty if it may.

        ``speedup``: how many times as fast the other phases may have become, which gives these phases a larger share. A
        candidate that is already on has no such reason: it is measured by switching it off.
        """
        recipe, profile, goal = self.recipe(candidate), self.facts.profile, self.request.goal
        if candidate.already_on:
            return ""
        if recipe.id == BATCH_SIZE and not goal.tries_larger_batches:
            return goal.words.larger_batch
        bound = upper_bound(profile, recipe.phases) if profile else None
        by_memory = goal.objective is Objective.MEMORY and recipe.saves_memory  # the profile bounds gains in time only
        if profile is None or bound is None or by_memory or speedup * (bound - 1) > CHANGE - 1:
            return ""
        share = sum(profile.phases.get(phase, 0.0) for phase in recipe.phases) / profile.step_ms
        named = " and ".join(phase.value for phase in sorted(recipe.phases, key=list(Phase).index))
        takes = "takes" if len(recipe.phases) == 1 else "take"
        return (
            f"{named} {takes} {format_percent(share, digits=2)} of the step, the most that it can gain; less than "
            f"{format_percent(CHANGE - 1)} counts as no change"
        )

    # --- kinds of candidates --------------------------------------------------------------------------------------

    def recipe(self, candidate: Candidate) -> Recipe:
        """The recipe of a candidate."""
        return self.catalog[candidate.recipe]

    def is_usual(self, candidate: Candidate) -> bool:
        """Whether an expert would use a candidate without asking: it is usual, or it undoes a bad habit."""
        recipe = self.recipe(candidate)
        ends = candidate.value == recipe.default != self.facts.current(recipe.key, recipe.default)
        undoes = recipe.habit and ends and not recipe.usual  # no usual values: the default is the good one
        return recipe.is_usual(candidate.value, self.facts.workload.mode) or undoes

    @cached
    def may_stack(self, candidate: Candidate) -> bool:
        """Whether a candidate may join a stack now: it needs no consent, and it is tried for its gain."""
        unusual_habit = self.recipe(candidate).habit and not self.is_usual(candidate)
        return self.consent.permits(candidate.settings) and not unusual_habit

    def allows(self, settings: Settings) -> bool:
        """Whether settings that no recipe has proposed yet may be tried: the request leaves none of them out."""
        recipes = [recipe.id for recipe, _ in self.catalog.in_order(settings)]
        wanted = not self.request.only or set(recipes) <= set(self.request.only)
        return wanted and not set(recipes) & set(self.request.skip) and self.consent.permits(settings)

    def with_settings(self, settings: Settings) -> Plan:
        """The plan with all of these settings as candidates, including those that no recipe had proposed."""
        unplanned = [(key, value) for key, value in settings.items() if not self.has(key, value)]
        new = tuple(Candidate(self.catalog.by_key(key).id, key, value) for key, value in unplanned)
        added = {candidate.recipe for candidate in new}
        skipped = {recipe: why for recipe, why in self.skipped.items() if recipe not in added}
        return replace(self, candidates=(*self.candidates, *new), skipped=skipped) if new else self

    def has(self, key: str, value: Value) -> bool:
        """Whether a setting is among the candidates."""
        return any((candidate.key, candidate.value) == (key, value) for candidate in self.candidates)

    @cached
    def partnered(self, stack: Settings) -> list[Candidate]:
        """The candidates that need these settings (an attention kernel may need bfloat16)."""
        facts = facts_under(self.facts, stack)
        skip = (*self.request.skip, *self.passed_over, CONTROL)
        proposals = self.catalog.propose(facts, only=self.request.only, skip=skip)
        known = {candidate.name for candidate in self.candidates}
        new = [c for c in proposals.candidates if c.name not in known and not c.key.startswith(PARALLEL)]
        return [c for c in new if c.key not in stack and not c.already_on]

    @cached
    def applies(self, candidate: Candidate, settings: Settings) -> bool:
        """Whether a recipe proposes a candidate on top of these settings, or the person chose its value."""
        chosen = candidate.already_on or self.consent.values.get(candidate.recipe) == candidate.value
        beside = settings.without(candidate.key)
        return chosen or self.catalog.proposes(candidate, facts_under(self.facts, beside))

    @cached
    def fits(self, candidate: Candidate, settings: Settings) -> bool:
        """Whether a candidate conflicts with none of these settings and still has an effect with them."""
        with_it = settings.merged(candidate.settings)
        return not self.catalog.conflict(with_it) and self.applies(candidate, settings)

    @cached
    def without(self, settings: Settings, key: str) -> Settings:
        """The settings without one, and without those that then have no effect (prefetching without workers)."""
        rest = settings.without(key)
        for recipe, value in self.catalog.in_order(rest):
            member = Candidate(recipe.id, recipe.key, value)
            if self.applies(member, settings) and not self.applies(member, rest):
                rest = rest.without(recipe.key)
        return rest

    # --- the expert's stack ---------------------------------------------------------------------------------------

    def usual_stack(self) -> Settings:
        """The stack that an expert would write for these facts without compiling: every usual setting that applies.

        Leaves out settings that conflict with an earlier one or have no effect with it. Adds the usual loader settings
        that only apply with others of the stack, such as those of its workers.
        """
        chosen = [c for c in self.candidates if self._belongs(c)]
        spared = {recipe for candidate in chosen for recipe in self.recipe(candidate).spares}
        left = [candidate for candidate in chosen if candidate.recipe not in spared]
        settings = Settings()
        for candidate in sorted(left, key=lambda c: self.hints.get(c.key) != c.value):
            if candidate.key not in settings and self.fits(candidate, settings):
                settings = settings.merged(candidate.settings)
        for candidate in self.partnered(settings):
            belongs = self.recipe(candidate).stage is Stage.DATA and self.is_usual(candidate)
            if belongs and self.may_stack(candidate) and self.fits(candidate, settings):
                settings = settings.merged(candidate.settings)
        return settings

    def compiled(self, settings: Settings) -> Settings:
        """The settings compiled, with the loss if possible; with the compiler's graphs if nothing captures the step."""
        proposed = {(c.key, c.value) for c in self.candidates if self.may_stack(c)}
        hinted = {key: value for key, value in self.hints.items() if (key, value) in proposed}
        usual = [pair for pair in ((COMPILE_SCOPE, "with_loss"), (COMPILE_MODE, "default")) if pair in proposed][:1]
        if "step_graph" in self.skipped and "step_graph" not in self.request.skip and not self.request.only:
            usual += {(COMPILE_MODE, "reduce-overhead")} & proposed
        if not usual:
            return settings
        wanted = settings.merged(dict(usual))
        tuned = wanted.merged({k: v for k, v in hinted.items() if self.catalog.by_key(k).expensive})
        return wanted if self.catalog.conflict(tuned) else tuned

    def _belongs(self, candidate: Candidate) -> bool:
        """Whether a candidate is in the first stack.

        False if it costs seconds in every trial, or shortens only phases that are known to take no time.
        """
        recipe, profile = self.recipe(candidate), self.facts.profile
        slow = recipe.expensive or recipe.times_kernels or recipe.stage is Stage.ENVIRONMENT
        if slow or not self.may_stack(candidate):
            return False
        bound = upper_bound(profile, recipe.phases) if profile else None
        if not (bound is None or candidate.already_on or bound > policy.LEAST_GAIN):
            return False
        if recipe.ladder:
            return candidate.value == self._enough_of(recipe)
        if self.request.objective is Objective.MEMORY:
            return recipe.saves_memory or self.is_usual(candidate)
        hinted = self.hints.get(candidate.key) == candidate.value
        return recipe.suits(self.facts, candidate.value) or self.is_usual(candidate) or hinted

    def _enough_of(self, recipe: Recipe) -> Value | None:
        """The value (number of workers) for the usual stack; None if a step with that stack does not wait for data.

        With that stack a GPU computes faster, but getting the data takes as long as before. The smallest value with
        nearly the best expected gain is enough. The next larger value is returned, since workers share cores.
        """
        profile = self.facts.profile
        if profile is None:
            return None
        waiting = profile.share(Phase.DATA_WAIT)
        faster = policy.STACK_GAIN * policy.LARGE_GAIN if self.facts.on_cuda else 1.0
        step_ms = profile.step_ms * (waiting + (1 - waiting) / faster)
        if profile.phases.get(Phase.DATA_WAIT, 0.0) <= INPUT_BOUND_SHARE * step_ms:
            return None
        gains = {c.value: self.expected_gain(c, Settings(), step_ms) for c in self.candidates if c.recipe == recipe.id}
        numbers = sorted(value for value in gains if isinstance(value, int))
        enough = [number for number in numbers if gains[number] >= _AS_GOOD * max(gains.values())]
        return next(iter(enough[1:] or enough), recipe.default)

    # --- expected gains -------------------------------------------------------------------------------------------

    @cached
    def expected_gain(self, candidate: Candidate, stack: Settings, step_ms: float) -> float:
        """The factor by which a candidate usually speeds up such a workload, on a stack whose step takes ``step_ms``.

        It is relative to the stack's present value. Its upper bound comes from the profile of the phases that it can
        shorten. If the objective is memory or energy, it stands for the gain in memory or energy.
        """
        recipe = self.recipe(candidate)
        if self.request.objective is Objective.MEMORY:
            return _MEMORY_GAIN if recipe.saves_memory else 1.0
        limit, peak = self.request.memory_limit_bytes, self.facts.peak_reserved_bytes
        if recipe.saves_memory and limit is not None and peak is not None and peak > limit:
            return _MEMORY_GAIN  # less memory comes before more speed
        facts = self._facts_at(step_ms)
        usual = self.catalog.expected_gain(candidate.recipe, facts, candidate.value, beside=stack)
        bound = upper_bound(facts.profile, recipe.phases) if facts.profile else None
        return usual if bound is None else min(usual, bound)

    def _facts_at(self, step_ms: float) -> Facts:
        """The facts with the phases of a faster step: a stack shortens computing but not the wait for data."""
        profile = self.facts.profile
        if profile is None or not profile.phases:
            return self.facts
        wait_ms = profile.phases.get(Phase.DATA_WAIT, 0.0)
        computing_ms = sum(profile.phases.values()) - wait_ms
        left_ms = max(step_ms - wait_ms, _LEAST_REST * step_ms)
        if left_ms >= computing_ms:
            return self.facts
        phases = {phase: ms * left_ms / computing_ms for phase, ms in profile.phases.items()}
        phases[Phase.DATA_WAIT] = wait_ms
        return replace(self.facts, profile=replace(profile, step_ms=wait_ms + left_ms, phases=phases))


# Usual gain of a setting that saves memory: tests/gpu/RESULTS.md, 5 to 50 %.
_MEMORY_GAIN = 1.1
_LEAST_REST = 0.05
# A smaller number with this share of the best expected gain is as good.
_AS_GOOD = 0.99


def facts_under(facts: Facts, settings: Mapping[str, Value]) -> Facts:
    """The facts as they are when these settings are applied over the user's own."""
    loader = facts.workload.loader
    workers = 0 if settings.get("data.on_device") else settings.get("data.num_workers")
    if loader is not None and workers is not None:
        workers = int(workers)
        loader = replace(loader, num_workers=workers, persistent_workers=workers > 0 and loader.persistent_workers)
    current = {**facts.workload.current, **settings}
    return replace(facts, workload=replace(facts.workload, loader=loader, current=current))
