"""The experiment's knowledge: a value that every move turns into the next. It measures nothing and emits no events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from advisor.experiment.cached import cached
from advisor.experiment.consent import Consent
from advisor.experiment.control import OTHER_VALUE, REJECTED
from advisor.experiment.judging.judge import BASELINE, Judge
from advisor.experiment.judging.records import trial_record
from advisor.experiment.judging.runs import Turns, prior_spread
from advisor.experiment.plan import COMPILE_MODE, Plan
from advisor.experiment.policy import POLICY
from advisor.experiment.ranking import fills_the_device
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Comparison, Facts, Numerics, NumericsResult, TrialRecord, TrialResult

_NOT_FASTER = "the stack is not faster with it"
_NOT_SHOWN = "it is unclear whether the stack is better with it, so the simpler one stays"
_ALL_UNCLEAR = "it is unclear whether the settings are better together: more budget or a quiet machine decides"
# The reasons of settings that the search worked on, and which are not in what was found.
UNCLEAR = (_NOT_SHOWN, _ALL_UNCLEAR)


class Kind(StrEnum):
    """The kinds of moves."""

    STACK = "stack"  # measure a whole stack, without asking whether each of its settings gains anything alone
    DROP = "drop"  # leave one setting out: what it contributes, and whether the rest does as well
    SWAP = "swap"  # exchange the value of a setting
    ADD = "add"  # put one more setting on top of the stack
    ALONE = "alone"  # measure one candidate by itself
    AGAIN = "again"  # run settings once more, in another process: one run of each has not decided
    TURNS = "turns"  # measure the stack in turn with the baseline
    CONTROL = "control"  # run the baseline once more under another name: the difference is noise
    PROFILE = "profile"  # the instrumented pass: phases, operators, ceilings, habits
    REFERENCE = "reference"  # the baseline's first steps in a higher precision: tells rounding from faults
    HOST = "host"  # the baseline's step on the CPU: what the GPU is worth


_INSTRUMENTS = frozenset({Kind.CONTROL, Kind.PROFILE, Kind.REFERENCE, Kind.HOST})


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to measure next: these settings, over the user's own. ``gain`` is the factor that is expected of it.

    ``base`` are the settings that the result is compared with; ``candidate`` is the one in question, if it is one.
    """

    kind: Kind
    settings: Settings
    gain: float
    name: str
    base: Settings = BASELINE
    candidate: Candidate | None = None

    @property
    def has_priority(self) -> bool:
        """Whether a whole stack, or a baseline that is in doubt, promises so much that it comes before all others."""
        first = self.kind in (Kind.STACK, Kind.CONTROL) or (self.kind is Kind.AGAIN and not self.settings)
        return first and self.gain >= POLICY.large_gain


@dataclass(frozen=True, slots=True)
class Evidence:
    """The outcome of a move: runs by their settings, those in turn, or the result of an instrument."""

    runs: tuple[tuple[Settings, TrialResult], ...] = ()
    turns: Turns | None = None
    control: TrialResult | None = None
    reference: TrialResult | None = None
    facts: Facts | None = None
    cpu_step_ms: float | None = None


@dataclass(frozen=True, eq=False)
class Known:
    """All that is known at one moment; equal to itself alone.

    ``usual`` and ``compiles`` are the two halves of an expert's stack without compiling, and what compiling it adds.
    ``stack`` is the combination that the search works on, the best usable one; where the person rejected a part of it,
    the rest, perhaps unmeasured. ``found`` is the one that is reported and exported.
    ``dropped`` says why keys are not in it. ``measured_stacks`` are the whole stacks that were measured, also weakened
    ones; ``tried`` are the settings in which a candidate was last in question, by its name; ``done`` are the
    instruments that have been used.
    """

    plan: Plan
    judge: Judge
    usual: Settings
    compiles: Settings
    stack: Settings = BASELINE
    dropped: Mapping[str, str] = field(default_factory=dict)
    measured_stacks: frozenset[Settings] = frozenset()
    tried: Mapping[str, Settings] = field(default_factory=dict)
    done: frozenset[Kind] = frozenset()

    @classmethod
    def begin(cls, plan: Plan, judge: Judge) -> Known:
        """The knowledge after the baseline."""
        usual = plan.usual_stack()
        return cls(plan, judge, usual, plan.compiled(usual).filtered(lambda key: key not in usual))

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def step_ms(self) -> float:
        """Milliseconds per step of the stack, as far as it was measured; of the baseline before."""
        return self.judge.speed(self.stack if self.judge.measured_runs(self.stack) else BASELINE)[0]

    @property
    def pending(self) -> bool:
        """Whether the stack is still to be measured: the person rejected a part of it."""
        return not self.judge.has_tried(self.stack)

    def why_unusable(self, settings: Settings) -> str:
        """The reason that tried settings cannot be the stack; empty when they can."""
        result = self.judge.result(settings)
        if result is None or not result.measured:
            return result.reason if result else "it was not measured"
        by = self.judge.yardstick
        if by.goal.fits(by.baseline.result) and (limit := by.goal.exceeded(result)):
            return f"it takes {limit}"  # where the baseline does as well, it may be a step towards the limit
        if settings and not by.too_large and not by.may_keep_speed(self.judge.compare(settings)):
            return f"it {by.goal.not_better()}"
        return self.plan.consent.why_not(settings, self.judge.numerics(settings), seen=self._seen(settings))

    def _seen(self, settings: Settings) -> tuple[Numerics, ...]:
        """The changes of results that were known of each accepted setting: consent covers those."""
        accepted = [key for key in settings if self._is_accepted(key, settings)]
        alone = [self.numerics(Settings({key: settings[key]})) for key in accepted]
        return tuple(numerics.decisive for numerics in alone if numerics is not None)

    def _is_accepted(self, key: str, settings: Settings) -> bool:
        return self.plan.consent.accepts(self.plan.catalog.by_key(key).id, settings[key])

    def _accepted(self) -> Settings:
        """The settings of the stack that the person accepted: they stay in it."""
        return self.stack.filtered(lambda key: self._is_accepted(key, self.stack))

    def numerics(self, settings: Settings) -> NumericsResult | None:
        """The measured numerics of settings that ran."""
        result = self.judge.result(settings)
        return self.judge.numerics(settings) if result is not None and result.measured else None

    def usable(self, settings: Settings) -> bool:
        """Whether settings ran, fit the memory limit, and change results no more than is allowed or consented to."""
        return not self.why_unusable(settings)

    def may_be_usable(self, settings: Settings) -> bool:
        """Whether settings are usable, or were not tried yet."""
        return not self.judge.has_tried(settings) or self.usable(settings)

    @cached
    def record(self, candidate: Candidate) -> TrialRecord | None:
        """The record of a candidate: alone, or in the most telling combination; None when it was not measured."""
        alone, key = Settings(candidate.settings), candidate.key
        if self.judge.has_tried(alone):
            in_stack = self.stack.get(key) == candidate.value
            contribution = self.contribution(key, self.stack) if in_stack else None
            return replace(trial_record(self.judge, candidate, alone), contribution=contribution)
        whole = self._most_informative(candidate)
        return trial_record(self.judge, candidate, whole, whole.without(key)) if whole else None

    def contribution(self, key: str, *combinations: Settings) -> Comparison | None:
        """The gain of a setting in the first of these combinations that was measured with and without it; else None."""
        for whole in combinations:
            rest = self.plan.without(whole, key)
            if key in whole and rest and self.judge.measured_runs(whole) and self.judge.measured_runs(rest):
                return self.judge.contribution(whole, rest)
        return None

    @property
    def uncompiled(self) -> Settings:
        """The stack without the settings that compile it."""
        return self.stack.filtered(lambda key: not self.plan.catalog.by_key(key).expensive)

    def _most_informative(self, candidate: Candidate) -> Settings:
        """The measured combination that tells most about a candidate: compared with the same without it, if any was."""
        ran, key, tried = self.judge.measured_runs, candidate.key, self.tried.get(candidate.name)
        holds = [s for s in self.judge.runs if s.get(key) == candidate.value and ran(s) and ran(s.without(key))]
        if holds:
            return max(holds, key=lambda whole: (whole == self.stack, whole == tried, len(whole)))
        in_stack = self.stack if self.stack.get(key) == candidate.value else BASELINE
        return next((one for one in (tried, in_stack) if one and self.judge.has_tried(one)), BASELINE)

    # --- what is reported -----------------------------------------------------------------------------------------

    @property
    @cached
    def found(self) -> Settings:
        """The settings that the session reports and exports: all readers get them from here.

        They were measured together: the stack, or a part of it that is as good within the noise. Where few runs of the
        stack show nothing, a part of it or a former stack that is shown to be better; else none, unless the estimate is
        large and there was no time for the turns. What the person accepted and the stack has is always among them.
        """
        if self.pending or not self.stack:
            return self.stack
        accepted, best = self._accepted(), self.stack
        ran = [settings for settings, runs in self.judge.runs.items() if settings and runs[-1].measured]
        usable = [settings for settings in ran if settings.merged(accepted) == settings and self.usable(settings)]
        helps = self.may_recommend(best)
        if not helps or best not in usable:  # or its turns had no time
            former = [s for s in usable if self.judge.took_turns(s) or (not helps and s.items() < best.items())]
            if shown := [s for s in former if self.may_recommend(s)]:
                best = max(shown, key=lambda s: (self.judge.took_turns(s), self.judge.gain(s, BASELINE).ratio))
            gain = self.judge.gain(best, BASELINE)
            promises = not self.judge.took_turns(best) and gain.ratio >= POLICY.large_gain and not gain.is_worse
            if not (shown or helps or (best in usable and (accepted or promises))):
                return BASELINE
        simplest, compiles = best, self.plan.catalog.compiles
        while rests := [s for s in self._without_one(simplest) if s in usable and self._does_as_well(s, best)]:
            simplest = max(rests, key=lambda s: (not compiles(s), self.judge.gain(s, BASELINE).ratio))
        return simplest

    @property
    def to_confirm(self) -> Settings:
        """The settings whose turns with the baseline would tell most: those that are reported, else the stack."""
        return self.found or self.stack

    @property
    def left_out(self) -> Mapping[str, str]:
        """The reason that settings are not in what was found, by their keys."""
        why = _NOT_SHOWN if self.found else _ALL_UNCLEAR
        return {**self.dropped, **{key: why for key in self.stack if key not in self.found}}

    def _does_as_well(self, simpler: Settings, best: Settings) -> bool:
        """Whether a simpler combination is as good as the best within the noise, and as sure to be better at all."""
        sure = self.may_recommend(simpler) or not (self.may_recommend(best) or self.judge.took_turns(simpler))
        within = self.judge.compare(simpler).speedup >= self.judge.compare(best).ci_low
        return sure and within and not self.judge.gain(best, simpler).is_better

    def _without_one(self, settings: Settings) -> list[Settings]:
        """The measured combinations that are these settings less one."""
        rests = [self.plan.without(settings, key) for key in settings]
        return [rest for rest in rests if rest and self.judge.measured_runs(rest)]

    # --- what a move changes --------------------------------------------------------------------------------------

    def after(self, move: Move, evidence: Evidence | None) -> Known:
        """The knowledge after a move; without evidence it could not be measured yet."""
        if evidence is None:
            return self
        known = self._with(move, evidence)
        match move.kind:
            case Kind.STACK:
                known = known._after_stack(move)
            case Kind.ADD | Kind.SWAP | Kind.ALONE:
                known = known._after_candidate(move)
            case Kind.DROP | Kind.AGAIN:
                known = known._simplified(move)
            case Kind.TURNS:
                known = known._after_turns(move)
        return known._with_best_stack()._with_accepted()

    def with_consent(self, consent: Consent) -> Known:
        """The knowledge under other decisions: the stack loses what was rejected, and may have to be measured."""
        if consent.decided == self.plan.consent.decided:
            return self
        known = replace(self, plan=replace(self.plan, consent=consent))
        rejected = {recipe.key for recipe in self.plan.catalog if consent.rejects(recipe.id)}
        decided = (REJECTED, OTHER_VALUE)
        dropped = {key: why for key, why in self.dropped.items() if key in rejected or why not in decided}
        return known.with_permitted(self.stack, dropped)._with_best_stack()._with_accepted()

    def with_permitted(self, stack: Settings, dropped: Mapping[str, str]) -> Known:
        """The knowledge with another stack, without what has no consent, and the reasons of what is not in it.

        What needs a setting that leaves goes with it.
        """
        catalog, consent, gone = self.plan.catalog, self.plan.consent, dict[str, str]()
        for recipe, value in catalog.in_order(stack):
            if not consent.permits({recipe.key: value}):
                stack = self.plan.without(stack, recipe.key)
            if why := consent.ruled_out(recipe.id, value):
                gone[recipe.key] = why
        while stack and catalog.conflict(stack):
            one_less = (key for key in stack if not catalog.conflict(stack.without(key)))
            stack = stack.without(next(one_less, list(stack)[-1]))
        return replace(self, dropped={**dropped, **gone})._with_stack(stack)

    def _with_accepted(self) -> Known:
        """The knowledge with what the person accepted in its stack, where the two were measured and are no worse."""
        consent, known = self.plan.consent, self
        new = [candidate for candidate in self.plan.candidates if candidate.key not in self.stack]
        accepted = [candidate.settings for candidate in new if consent.accepts(candidate.recipe, candidate.value)]
        accepted += [{self.plan.catalog[recipe].key: value} for recipe, value in consent.values.items()]
        for settings in accepted:
            whole = known.stack.merged(settings)
            measured = whole != known.stack and self.judge.measured_runs(whole) and not known.pending
            if measured and self.usable(whole) and not self.judge.gain(whole, known.stack).is_worse:
                known = known._with_stack(whole)
        return known

    def may_recommend(self, settings: Settings) -> bool:
        """Whether the measurements show these settings to be better than the user's own."""
        result = self.judge.result(settings)
        if not settings or result is None or not result.measured:
            return False
        return self.judge.yardstick.may_recommend(result, self.judge.compare(settings))

    def without_runs(self, settings: Settings) -> Known:
        """The knowledge without the runs of these settings, which are measured anew."""
        return replace(self, judge=self.judge.without_runs(settings))

    def _with(self, move: Move, evidence: Evidence) -> Known:
        judge = self.judge
        for settings, result in evidence.runs:
            judge = judge.with_run(settings, result)
        if evidence.turns is not None:
            judge = judge.with_turns(move.settings, evidence.turns)
        if evidence.control is not None:
            judge = judge.with_control(evidence.control)
        if evidence.reference is not None and evidence.reference.probed:
            judge = replace(judge, reference=evidence.reference)
        if evidence.cpu_step_ms is not None:
            judge = replace(judge, cpu_step_ms=evidence.cpu_step_ms)
        done = self.done | (_INSTRUMENTS & {move.kind})
        tried = {**self.tried, move.candidate.name: move.settings} if move.candidate else self.tried
        measured_stacks = self.measured_stacks | {move.settings} if move.kind is Kind.STACK else self.measured_stacks
        unplanned = move.kind is Kind.STACK and judge.measured_runs(move.settings)
        plan = self.plan.with_settings(move.settings) if unplanned else self.plan
        known = replace(self, plan=plan, judge=judge, done=done, tried=tried, measured_stacks=measured_stacks)
        return known._with_facts(evidence.facts) if evidence.facts is not None else known

    def _with_facts(self, facts: Facts) -> Known:
        """The plan anew, once the instrumented pass has shown where the time goes."""
        old = self.plan
        speedup = max(1.0, self.judge.gain(self.stack, BASELINE).ratio) if self.stack else 1.0
        plan = Plan.of(old.catalog, old.request, facts, old.consent, hints=old.hints, speedup=speedup)
        kept = {candidate.name: candidate for candidate in (*old.candidates, *plan.candidates)}
        left = [c for c in old.candidates if c not in plan.candidates]
        tried = [c for c in left if self.record(c) is not None or self.stack.get(c.key) == c.value]
        planned = tuple(kept[name] for name in dict.fromkeys(c.name for c in (*plan.candidates, *tried)))
        named = {candidate.recipe for candidate in planned}
        skipped = {recipe: why for recipe, why in plan.skipped.items() if recipe not in named}
        judge = replace(self.judge, prior=prior_spread(facts))
        return replace(self, judge=judge, plan=replace(plan, candidates=planned, skipped=skipped))

    # --- how the stack follows ------------------------------------------------------------------------------------

    def _after_stack(self, move: Move) -> Known:
        """The knowledge after a whole stack; the settings of one that is no better are not asked for again."""
        if move.settings == self.stack:  # the rest of a stack after a rejection
            return self if self.usable(self.stack) else self._with_stack(self.best_usable())
        if not self.stack or not self.usable(move.settings) or self.judge.gain(move.settings, self.stack).ratio > 1:
            return self
        added = [key for key in move.settings if key not in self.stack]
        if COMPILE_MODE in added and COMPILE_MODE not in self.compiles:
            added = [COMPILE_MODE]  # it was added for its CUDA graphs: the next stack compiles the same without them
        return replace(self, dropped={**self.dropped, **dict.fromkeys(added, _NOT_FASTER)})

    def _with_best_stack(self) -> Known:
        """The knowledge with the best of the stack, the whole ones and the user's own settings as its stack.

        Nothing that the person accepted leaves, and nothing comes back that was left out for a reason of its own.
        """
        if self.pending:
            return self
        accepted, gain = self._accepted(), self.judge.gain(self.stack, BASELINE)
        refuted = not accepted and self.judge.measured_runs(self.stack) and gain.ratio <= 1
        return self._with_stack(self._best_stack(BASELINE if refuted else self.stack, self.measured_stacks, accepted))

    def _best_stack(self, best: Settings, stacks: Iterable[Settings], accepted: Settings = BASELINE) -> Settings:
        """The best of these settings and of the usable stacks that hold what was accepted."""
        blocked = {key for key, why in self.dropped.items() if why != _NOT_FASTER}
        for stack in sorted(stacks, key=len):
            possible = (
                not blocked & stack.keys() and stack.merged(accepted) == stack and self.judge.measured_runs(stack)
            )
            if possible and self.usable(stack) and self.judge.gain(stack, best).ratio > 1:
                best = stack
        return best

    def _after_candidate(self, move: Move) -> Known:
        candidate = move.candidate
        assert candidate is not None, "the move is about a candidate"
        result = self.judge.result(move.settings)
        if not self.plan.may_stack(candidate) or fills_the_device(self.plan.facts, move.settings, result):
            return self
        if why := self.why_unusable(move.settings):
            alone = len(move.settings) <= 1
            return self if alone else self._without(candidate.key, f"together with the others: {why}")
        gain = self.judge.gain(move.settings, self.stack)
        margin = self.plan.recipe(candidate).replacement_margin if candidate.key in self.stack else 1.0
        if gain.is_better and gain.low > margin and not self.needs_another_run(move.settings):
            return self._with_stack(move.settings)
        if move.base == self.stack and self.stack and candidate.key not in self.stack:
            return self._without(candidate.key, "it adds nothing to the others")
        return self

    def needs_another_run(self, settings: Settings) -> bool:
        """Whether a single run of a combination shows it a little better than the stack."""
        if not self.stack or len(self.judge.measured_runs(settings)) > 1:
            return False
        return 1 < self.judge.gain(settings, self.stack).ratio < POLICY.small_gain

    def _simplified(self, move: Move) -> Known:
        """Leave a setting out of the stack if the rest does as well; a usual one only after two runs of each.

        Else another run may show that a combination is better than the stack after all.
        """
        for rest in self._without_one(self.stack):
            gone = [key for key in self.stack if key not in rest]
            if not self.usable(rest) or any(key in self._accepted() for key in gone):
                continue
            gain = self.judge.gain(rest, self.stack)
            clear = gain.ratio / gain.low - 1 <= POLICY.widest_for_simpler
            runs = min(len(self.judge.measured_runs(settings)) for settings in (rest, self.stack))
            as_good = gain.ratio >= POLICY.as_fast and clear and runs > 1
            if as_good or (gain.low > 1 and (runs > 1 or gain.ratio >= POLICY.small_gain)):
                why = dict.fromkeys(gone, "the others do as well without it")
                return replace(self._with_stack(rest), dropped={**self.dropped, **why})
        ran = move.kind is Kind.AGAIN and move.settings and self.usable(move.settings)
        better = ran and self.judge.gain(move.settings, self.stack).is_better
        return self._with_stack(move.settings) if better else self

    def _after_turns(self, move: Move) -> Known:
        """A stack whose turns with the baseline show that it is no better is given up; nothing accepted leaves."""
        if move.settings != self.stack:
            return self._simplified(move)
        if not self.judge.took_turns(self.stack) or self.found or self.undecided(self.stack):
            return self
        why = self.why_unusable(self.stack)
        if not why and self.judge.goal.by_time and self.judge.compare(self.stack).seems_faster:
            return self
        why = why or f"together they {self.judge.goal.not_better(2)}"
        best = self._best_stack(BASELINE, [stack for stack in self.measured_stacks if not self.judge.took_turns(stack)])
        gone = [key for key in move.settings if key not in best]
        return replace(self, stack=best, dropped={**self.dropped, **dict.fromkeys(gone, why)})

    def undecided(self, settings: Settings) -> bool:
        """Whether settings that took turns with the baseline seem better, and more turns may show whether they are."""
        turns, result = self.judge.in_turn.get(settings), self.judge.result(settings)
        if turns is None or turns.by_block or len(turns.new) >= POLICY.most_runs or result is None:
            return False
        gain = self.judge.yardstick.gain(result, self.judge.compare(settings))
        return gain is not None and gain.ratio > 1 and not gain.is_better

    def best_usable(self) -> Settings:
        """The best measured combination that may be used; the baseline where none is better."""
        best = BASELINE
        for settings in sorted(self.judge.runs, key=len):
            ran = bool(settings) and bool(self.judge.measured_runs(settings))
            if ran and self.usable(settings) and self.judge.gain(settings, best).is_better:
                best = settings
        return best

    def _with_stack(self, settings: Settings) -> Known:
        dropped = {key: why for key, why in self.dropped.items() if key not in settings}
        return replace(self, stack=settings, dropped=dropped)

    def _without(self, key: str, why: str) -> Known:
        return replace(self, dropped={**self.dropped, key: why})
