"""The knowledge of the search: a frozen value that each move replaces by the next. It measures and posts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from advisor.experiment import policy
from advisor.experiment.consent import Consent
from advisor.experiment.control import OTHER_VALUE, REJECTED, UNCLEAR_TOGETHER
from advisor.experiment.plan import COMPILE_MODE, Plan
from advisor.experiment.ranking import fills_the_device
from advisor.judging.judge import BASELINE, Judge, cached, trial_record
from advisor.judging.runs import Turns, prior_spread
from advisor.recipe.settings import Settings
from advisor.records import CHANGE, Candidate, Comparison, Facts, TrialRecord, TrialResult

_NOT_FASTER = "the combination is not faster with it"
_AS_WELL = "the others do as well without it"
_NOT_SHOWN = "unclear whether it helps, so the simpler combination stays"
UNCLEAR = (_NOT_SHOWN, UNCLEAR_TOGETHER)  # for settings that the search tried and did not show to help


class Kind(StrEnum):
    """The kinds of moves."""

    STACK = "stack"  # measure a whole stack, without asking whether each of its settings gains anything alone
    DROP = "drop"  # leave one setting out: shows what it contributes, and whether the other settings are as fast
    SWAP = "swap"  # exchange the value of a setting
    ADD = "add"  # put one more setting on top of the stack
    ALONE = "alone"  # measure one candidate by itself
    AGAIN = "again"  # run settings once more in another process, since one run has not decided
    TURNS = "turns"  # measure the stack in turn with the baseline
    CONTROL = "control"  # run the baseline once more under another name: the difference is noise
    PROFILE = "profile"  # the instrumented pass: phases, operators, ceilings, habits
    REFERENCE = "reference"  # the baseline's first steps in a higher precision: distinguishes rounding from faults


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to measure next: these settings, over the user's own."""

    kind: Kind
    settings: Settings
    gain: float  # the expected speed-up factor
    name: str
    candidate: Candidate | None = None  # the candidate that the move is about

    @property
    def has_priority(self) -> bool:
        """Whether a whole stack, or a baseline in doubt, promises so much that the move comes before all others."""
        first = self.kind in (Kind.STACK, Kind.CONTROL) or (self.kind is Kind.AGAIN and not self.settings)
        return first and self.gain >= policy.LARGE_GAIN


@dataclass(frozen=True, slots=True)
class Evidence:
    """The outcome of a move: runs by their settings, turns, or what an instrument has found."""

    runs: tuple[tuple[Settings, TrialResult], ...] = ()
    turns: Turns | None = None
    reference: TrialResult | None = None
    facts: Facts | None = None

    def added_to(self, judge: Judge, settings: Settings) -> Judge:
        """The judge with this outcome added, for a move of these settings."""
        for of_run, result in self.runs:
            judge = judge.with_run(of_run, result)
        if self.turns is not None:
            judge = judge.with_turns(settings, self.turns)
        return replace(judge, reference=self.reference) if self.reference and self.reference.probed else judge


@dataclass(frozen=True, eq=False)
class Known:
    """All that is known at one moment; equal only to itself.

    ``stack`` is the combination that the search works on: the best usable one, without what the person rejected. It may
    not have been measured. ``found`` is the combination that is reported and exported.
    """

    plan: Plan
    judge: Judge
    usual: Settings  # an expert's stack without compiling
    compiles: Settings  # the settings that compile that stack
    stack: Settings = BASELINE
    dropped: Mapping[str, str] = field(default_factory=dict)  # why keys are not in the stack
    tried: Mapping[str, Settings] = field(default_factory=dict)  # the settings in which each candidate was last tried
    done: frozenset[Kind] = frozenset()  # the kinds of moves made so far

    @classmethod
    def begin(cls, plan: Plan, judge: Judge) -> Known:
        """The knowledge after the baseline."""
        usual = plan.usual_stack()
        return cls(plan, judge, usual, plan.compiled(usual).filtered(lambda key: key not in usual))

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def step_ms(self) -> float:
        """Milliseconds per step of the stack, or of the baseline if the stack was not measured yet."""
        return self.judge.speed(self.stack if self.judge.measured_runs(self.stack) else BASELINE)[0]

    @property
    def pending(self) -> bool:
        """Whether the stack still has to be measured because the person rejected a part of it."""
        return not self.judge.has_tried(self.stack)

    @cached
    def why_unusable(self, settings: Settings) -> str:
        """The reason that tried settings cannot be the stack; empty if they can."""
        result = self.judge.result(settings)
        if result is None or not result.measured:
            return result.reason if result else "it was not measured"
        by = self.judge.yardstick
        if by.goal.fits(by.baseline.result) and (limit := by.goal.exceeded(result)):
            return f"it takes {limit}"  # if the baseline exceeds it too, this may be a step towards it
        if settings and not by.too_large and not by.may_keep_speed(self.judge.compare(settings)):
            return f"it {by.goal.not_better()}"
        # Consent covers only those changes of results that each accepted setting is known to make.
        accepted = (Settings({key: value}) for key, value in self._accepted(settings).items())
        seen = [self.judge.numerics(alone).decisive for alone in filter(self.judge.measured_runs, accepted)]
        return self.plan.consent.why_not(settings, self.judge.numerics(settings), seen=seen)

    def _is_refuted(self, settings: Settings) -> bool:
        """Whether turns showed settings to be no better than the baseline. False if the person accepted any of them."""
        open_question = not self.judge.took_turns(settings) or self.undecided(settings)
        if open_question or self._accepted(settings) or self.may_recommend(settings):
            return False
        return not (self.judge.goal.by_time and self.judge.compare(settings).speedup > CHANGE)

    def _accepted(self, settings: Settings) -> Settings:
        """The part of these settings that the person accepted. It stays in the stack."""
        by_key, accepts = self.plan.catalog.by_key, self.plan.consent.accepts
        return settings.filtered(lambda key: accepts(by_key(key).id, settings[key]))

    def may_be_usable(self, settings: Settings) -> bool:
        """Whether settings are usable or untried."""
        return not self.judge.has_tried(settings) or not self.why_unusable(settings)

    @cached
    def record(self, candidate: Candidate) -> TrialRecord | None:
        """The record of a candidate, alone or else in the most informative combination; None if it was not measured."""
        judge, alone, key, ran = self.judge, Settings(candidate.settings), candidate.key, self.judge.measured_runs
        in_stack, last = self.stack.get(key) == candidate.value, self.tried.get(candidate.name)
        if judge.has_tried(alone):
            return trial_record(judge, candidate, alone, self.contribution(key, self.stack) if in_stack else None)
        compared = [s for s in judge.runs if s.get(key) == candidate.value and ran(s) and ran(s.without(key))]
        if compared:
            whole = max(compared, key=lambda one: (one == self.stack, one == last, len(one)))
            return trial_record(judge, candidate, whole, judge.compare(whole, whole.without(key)))
        others = (one for one in (last, self.stack if in_stack else None) if one and judge.has_tried(one))
        return next((trial_record(judge, candidate, one) for one in others), None)

    def contribution(self, key: str, *combinations: Settings) -> Comparison | None:
        """The gain of a setting in the first combination measured with and without it; None if there is none."""
        for whole in combinations:
            rest = self.plan.without(whole, key)
            if key in whole and rest and self.judge.measured_runs(whole) and self.judge.measured_runs(rest):
                return self.judge.compare(whole, rest)
        return None

    @property
    def uncompiled(self) -> Settings:
        """The stack without the settings that compile it."""
        return self.stack.filtered(lambda key: not self.plan.catalog.by_key(key).expensive)

    # --- what is reported -----------------------------------------------------------------------------------------

    @cached_property
    def found(self) -> Settings:
        """The settings that the session reports and exports. All readers get them from here.

        They were measured together, and their interval shows that they are better. A confirmed combination stays unless
        a part of it is as good, or the whole interval of another lies above its own. Two confirmed combinations met
        different baselines, so the later one stays unless its whole interval lies below the other's speed-up. Settings
        of the stack that the person accepted are always included.
        """
        best, judge = self._best_shown, self.judge
        if self.pending or not best or not judge.goal.by_time:
            return best
        confirmed = [s for s in self._with_accepted if judge.took_turns(s) and self.may_recommend(s)]
        former = max(confirmed, key=lambda s: judge.compare(s).speedup, default=best)
        ours, theirs = judge.compare(best), judge.compare(former)
        better = ours.ci_high >= theirs.speedup if judge.took_turns(best) else ours.ci_low > theirs.ci_high
        return best if better or best.items() <= former.items() else former

    @cached_property
    def _best_shown(self) -> Settings:
        """The best of what beats the baseline: the stack or an equally good part, else another part or former stack."""
        best, took_turns = self.stack, self.judge.took_turns
        if self.pending or not best:
            return best
        ran = self._with_accepted
        if not self.may_recommend(best):
            former = [s for s in ran if self.may_recommend(s) and (took_turns(s) or s.items() < best.items())]
            if not former and not (self._accepted(best) and best in ran):
                return BASELINE
            best = max(former, key=lambda s: (took_turns(s), self.judge.gain(s, BASELINE).ratio), default=best)
        simplest, compiles = best, self.plan.catalog.compiles
        while True:
            less_one = [self.plan.without(simplest, key) for key in simplest]
            rests = [s for s in ran if s in less_one and self._does_as_well(s, best)]
            if not rests:
                return simplest
            simplest = max(rests, key=lambda s: (not compiles(s), self.judge.gain(s, BASELINE).ratio))

    @property
    def _with_accepted(self) -> list[Settings]:
        """The measured combinations that may be the stack and contain each setting of it that the person accepted."""
        accepted = self._accepted(self.stack)
        return [s for s in self.judge.runs if self.may_be_stack(s) and s.merged(accepted) == s]

    @property
    def to_confirm(self) -> Settings:
        """The settings to time in turn with the baseline: the best that are shown to be better, else the stack."""
        return self._best_shown or self.stack

    @property
    def most_promising(self) -> Settings:
        """The best-looking settings while none is shown to be better; turns can decide what few runs leave open."""
        judge = self.judge
        if self.pending or self.found or not judge.goal.by_time:
            return BASELINE
        open_ones = (s for s in judge.runs if self.may_be_stack(s) and not judge.took_turns(s))
        best = max(open_ones, key=lambda settings: judge.gain(settings, BASELINE).ratio, default=BASELINE)
        return best if best and judge.gain(best, BASELINE).ratio >= policy.SMALL_GAIN else BASELINE

    @property
    def left_out(self) -> Mapping[str, str]:
        """The reason for each setting that the result leaves out, by its key."""
        why = _NOT_SHOWN if self.found else UNCLEAR_TOGETHER
        return {**self.dropped, **{key: why for key in self.stack if key not in self.found}}

    def _does_as_well(self, simpler: Settings, best: Settings) -> bool:
        """Whether a simpler combination equals the best within the noise and is as surely better than the baseline."""
        sure = self.may_recommend(simpler) or not (self.may_recommend(best) or self.judge.took_turns(simpler))
        within = self.judge.compare(simpler).speedup >= self.judge.compare(best).ci_low
        return sure and within and self.judge.gain(best, simpler).low <= 1

    # --- what a move changes --------------------------------------------------------------------------------------

    def after(self, move: Move, evidence: Evidence | None) -> Known:
        """The knowledge after a move. Evidence is None if the move could not be measured yet."""
        if evidence is None:
            return self
        judge = evidence.added_to(self.judge, move.settings)
        tried = {**self.tried, move.candidate.name: move.settings} if move.candidate else self.tried
        unplanned = move.kind is Kind.STACK and judge.measured_runs(move.settings)
        plan = self.plan.with_settings(move.settings) if unplanned else self.plan
        known = replace(self, plan=plan, judge=judge, done=self.done | {move.kind}, tried=tried)
        return (known._with_facts(evidence.facts) if evidence.facts else known)._with_best_stack(move)

    def with_consent(self, consent: Consent) -> Known:
        """The knowledge under other decisions. The stack loses what was rejected and may then need a measurement."""
        if consent == self.plan.consent:
            return self
        known = replace(self, plan=replace(self.plan, consent=consent))
        rejected = {recipe.key for recipe in self.plan.catalog if consent.rejects(recipe.id)}
        decided = (REJECTED, OTHER_VALUE)
        dropped = {key: why for key, why in self.dropped.items() if key in rejected or why not in decided}
        return known.with_permitted(self.stack, dropped)._with_best_stack()

    def with_permitted(self, stack: Settings, dropped: Mapping[str, str]) -> Known:
        """The knowledge with another stack and reasons, without settings that lack consent or need one that does."""
        catalog, consent, gone = self.plan.catalog, self.plan.consent, dict[str, str]()
        for recipe, value in catalog.in_order(stack):
            if not consent.permits({recipe.key: value}):
                stack = self.plan.without(stack, recipe.key)
            if why := consent.ruled_out(recipe.id, value):
                gone[recipe.key] = why
        while stack and catalog.conflict(stack):
            one_less = (key for key in stack if not catalog.conflict(stack.without(key)))
            stack = stack.without(next(one_less, list(stack)[-1]))
        gone = {key: why for key, why in {**dropped, **gone}.items() if key not in stack}
        return replace(self, stack=stack, dropped=gone)

    def may_recommend(self, settings: Settings) -> bool:
        """Whether the measurements show these settings to be better than the user's own."""
        result = self.judge.result(settings)
        if not settings or result is None or not result.measured:
            return False
        sure = not self.judge.goal.by_time or self.judge.holds_where_busy(settings)
        return sure and self.judge.yardstick.may_recommend(result, self.judge.compare(settings))

    def _with_facts(self, facts: Facts) -> Known:
        """The knowledge with a new plan, after the instrumented pass has shown where the time goes."""
        old = self.plan
        speedup = max(1.0, self.judge.gain(self.stack, BASELINE).ratio) if self.stack else 1.0
        plan = old.with_facts(facts, speedup=speedup)
        tried = [c for c in old.candidates if self.record(c) is not None or self.stack.get(c.key) == c.value]
        by_name = {candidate.name: candidate for candidate in (*tried, *plan.candidates)}
        planned = tuple(by_name[name] for name in dict.fromkeys(c.name for c in (*plan.candidates, *tried)))
        named = {candidate.recipe for candidate in planned}
        skipped = {recipe: why for recipe, why in plan.skipped.items() if recipe not in named}
        judge = replace(self.judge, prior=prior_spread(facts))
        return replace(self, judge=judge, plan=replace(plan, candidates=planned, skipped=skipped))

    # --- how the stack follows ------------------------------------------------------------------------------------

    def _with_best_stack(self, move: Move | None = None) -> Known:
        """The knowledge with the best stack and why others are not in it. An unmeasured stack stays as it is."""
        if self.pending:
            return self
        best, old = self.best_usable(self.stack), self.stack
        why = f"together they {self.judge.goal.not_better(2)}" if self._is_refuted(old) else _AS_WELL
        # An unusable stack says nothing about its parts: simpler forms of it come next.
        gone = {} if self.why_unusable(old) else {key: why for key in old if key not in best}
        if move is not None and best and move.kind in (Kind.STACK, Kind.ADD):
            gone |= {key: why for key, why in self._lost(move).items() if key not in best}
        return replace(self, stack=best, dropped={**{k: v for k, v in self.dropped.items() if k not in best}, **gone})

    def _lost(self, move: Move) -> dict[str, str]:
        """The settings that a combination has beyond the stack, each with the reason that it does not help."""
        why, added = self.why_unusable(move.settings), [key for key in move.settings if key not in self.stack]
        if move.kind is Kind.ADD and self.stack:
            return dict.fromkeys(added, f"together with the others: {why}" if why else "it adds nothing to the others")
        if COMPILE_MODE in added and COMPILE_MODE not in self.compiles:
            added = [COMPILE_MODE]  # it was added for its CUDA graphs; the next stack compiles the same without them
        compiles = self.plan.catalog.compiles
        later = compiles(self.stack) and not compiles(move.settings)  # compiling it may show the gain
        return {} if why or later or not self.stack else dict.fromkeys(added, _NOT_FASTER)

    def best_usable(self, stack: Settings = BASELINE) -> Settings:
        """The best measured combination that may be used; the given stack unless another is better."""
        gain = self.judge.gain(stack, BASELINE)
        if self.why_unusable(stack) or self._is_refuted(stack) or (gain.ratio <= 1 and not self._accepted(self.stack)):
            stack = BASELINE
        for settings in sorted(filter(self.may_be_stack, self.judge.runs), key=len):
            if self._is_better(settings, stack):
                stack = settings
        return stack

    @cached
    def may_be_stack(self, settings: Settings) -> bool:
        """Whether measured settings may be the stack."""
        result, runs = self.judge.result(settings), self.judge.runs.get(settings)
        ran = bool(runs and runs[-1].measured)
        if not ran or settings not in self.judge.changed or self.why_unusable(settings):
            return False
        stackable = (Candidate(recipe.id, recipe.key, value) for recipe, value in self.plan.catalog.in_order(settings))
        if self._is_refuted(settings) or not all(map(self.plan.may_stack, stackable)):
            return False
        return not fills_the_device(self.plan.facts, settings, result)

    def _is_better(self, new: Settings, old: Settings) -> bool:
        """Whether a combination replaces another.

        One that turns have shown to be better replaces the baseline, even if earlier runs left it open. A whole new
        stack needs only a better estimate, unless it has a setting that was left out before. One added or
        changed setting needs an interval above 1; a small gain also needs two runs of each. An equally good part wins
        after two runs, since it is simpler. An accepted setting joins unless it makes the whole worse, and then stays.
        """
        if not old and self.judge.took_turns(new) and self.may_recommend(new):
            return True
        gain, added = self.judge.gain(new, old), [key for key in new if new[key] != old.get(key)]
        wanted, present = self._accepted(new), self._accepted(old)
        if wanted.keys() != present.keys():
            return wanted.keys() > present.keys() and old.merged(wanted) == new and gain.high >= 1
        once = min(len(self.judge.measured_runs(one)) for one in (new, old)) < 2
        is_clear = not once and gain.ratio <= policy.SMALL_GAIN * gain.low
        if not added and is_clear and gain.ratio >= 1 / policy.LEAST_GAIN:
            return True
        if len(added) > 1:
            return gain.ratio > 1 and {self.dropped.get(key, _NOT_FASTER) for key in added} == {_NOT_FASTER}
        return gain.low > 1.0 and (not once or gain.ratio >= policy.SMALL_GAIN)

    def undecided(self, settings: Settings) -> bool:
        """Whether settings seem better after turns with the baseline, and more turns may decide whether they are."""
        turns, result = self.judge.in_turn.get(settings), self.judge.result(settings)
        if turns is None or turns.by_block or len(turns.new) >= policy.MOST_RUNS or result is None:
            return False
        gain = self.judge.yardstick.gain(result, self.judge.compare(settings))
        return gain is not None and gain.ratio > 1 and not self.judge.yardstick.is_better(gain)
