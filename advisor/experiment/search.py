"""The search for the stack.

All winners and what most workloads gain from at once, then the winners left one by one; compiled on top; then what has
not won alone is left out once, since compiling changes what gains; then all that gained nothing so far at once, for
what only gains in company; then each setting is left out once, and what it rules out tried in its place. A combination
is measured once: what is known of it is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from advisor.catalog import Catalog
from advisor.experiment.bench import ENERGY_S, Bench
from advisor.experiment.control import REJECTED, Decision
from advisor.experiment.judge import Judge
from advisor.experiment.ranking import best_per_recipe
from advisor.recipe import Stage
from advisor.records import Candidate, TrialRecord, TrialResult, Verdict
from advisor.settings import Settings

_NONE = Settings()
# How many times as fast a stack must be without a usual setting to be checked again, and then to lose the setting; and
# to lose it as one that gains nothing. Where steps scatter much, intervals tell too little to take out what usually
# helps: several such settings, each worth less than the noise, are worth more than it together.
_BETTER, _CLEARLY_BETTER, _AS_FAST = 1.01, 1.05, 0.99
# Without one of these a compiled stack finds its kernels in the compiler's cache, most often.
_KEEP_THE_CODE = frozenset({Stage.GLOBAL, Stage.OPTIMIZER, Stage.DATA})
# What such a trial takes of one that compiles anew: on an H200 a third.
_CACHED_SHARE = 0.4
_NOTHING_AT_ONCE = "it adds nothing to the others, tried at once with all that gained nothing alone"
# A partner that alone cost more than this is not tried again in company.
_HOPELESS = 0.6
# Where a setting makes the stack this many times as fast, none that it rules out comes up to it: TensorFloat-32 has
# half the rate of bfloat16, so it wins only where converting the weights costs more than the products gain.
_BEYOND_RIVALS = 2.0


@dataclass
class Stack:
    """The settings found so far with the result that measured exactly them, and why others are not among them."""

    settings: Settings = field(default_factory=Settings)
    result: TrialResult | None = None
    dropped: dict[str, str] = field(default_factory=dict)


class StackSearch:
    """Builds the stack from measured candidates. Every step is a trial of the whole combination.

    ``decision`` is what the person said of a recipe so far: each step takes out what was rejected meanwhile, and what
    was accepted stays unless the whole fails with it or is measurably slower. ``applies`` says whether a candidate's
    recipe would still propose it to somebody who has these settings.
    """

    def __init__(
        self,
        bench: Bench,
        judge: Judge,
        catalog: Catalog,
        *,
        allowed: Callable[[TrialRecord], bool],
        reserve_s: Callable[[], float],
        progress: Callable[[Stack], None],
        say: Callable[[str], None] = lambda text: None,
        combined: Callable[[Settings, TrialResult], None] = lambda settings, result: None,
        decision: Callable[[str], Decision | None] = lambda recipe: None,
        applies: Callable[[Candidate, Settings], bool] = lambda candidate, settings: True,
    ) -> None:
        self._bench = bench
        self._judge = judge
        self._catalog = catalog
        self._allowed = allowed
        self._reserve_s = reserve_s
        self._progress = progress
        self._say = say
        self._combined = combined
        self._decision = decision
        self._applies = applies
        self._known: list[TrialRecord] = []
        self._untried: list[Candidate] = []
        self._unproven: list[str] = []
        self._measured: dict[Settings, TrialResult] = {}
        self._measured_twice: set[Settings] = set()
        self.stack = Stack()

    def grow(
        self,
        records: Iterable[TrialRecord],
        untried: Iterable[Candidate] = (),
        *,
        compiles_next: Callable[[], bool] = lambda: False,
    ) -> None:
        """Add the winners, the best first, keeping each that still helps; then known partners of what is in.

        What is added to an empty stack is tried all at once before that: most winners are good company, and what
        gained nothing alone may once they have moved the bottleneck. ``untried`` are candidates without a trial of
        their own, whose usual values are among those. What has not won alone is checked at once, or, where the stack
        is about to be compiled, by :meth:`settle_unproven` after that.
        """
        self._known, self._untried = list(records), list(untried)
        known = self._known
        self.drop_rejected()
        winners = self._winners(known)
        if not self.stack.settings:
            compiling = compiles_next()
            self._leap(winners, compiling=compiling)
            if not compiling:
                self.settle_unproven()
        for best in winners:
            for record in self._values(best, known):
                self._try(record)
        self.add_partners(known)

    def settle_unproven(self, *, reserve_s: float | None = None) -> None:
        """Leave out once each setting that came in without having won alone, what needs no new compilation first.

        ``reserve_s`` is kept for what comes after it: what is not checked now is when there is time in the end.
        """
        unproven, self._unproven = self._unproven, []
        by_effort = sorted(unproven, key=lambda key: not self._keeps_the_code(key))
        self.leave_one_out(by_effort, reserve_s=reserve_s)

    def add_leftovers(self, records: Iterable[TrialRecord], untried: Iterable[Candidate] = ()) -> None:
        """Try at once, on top of the stack, all that gained nothing alone: a gain that is in a pair shows in this.

        What was tried in company already is not among them, nor what costs much alone. When together they gain, each
        is then left out once.
        """
        self._untried = list(untried)
        self.drop_rejected()
        if not self.stack.settings:
            return
        neutral = [record.candidate for record in sorted(records, key=_slowness) if self._is_neutral(record)]
        decided = {*self.stack.settings, *self.stack.dropped}
        new = [candidate for candidate in (*neutral, *self._usual_untried()) if candidate.key not in decided]
        settings = self._company(new, self.stack.settings)
        if settings == self.stack.settings or not self._affordable(settings):
            return
        result = self._measure(settings)
        added = [key for key in settings if key not in self.stack.settings]
        if self._better_twice(settings, result):
            self._keep(settings, result)
            self.leave_one_out(added)
        else:
            self.stack.dropped.update(dict.fromkeys(added, _NOTHING_AT_ONCE))

    def add_partners(self, records: Iterable[TrialRecord]) -> None:
        """Try what did not help alone but is known to help in the company of a recipe of the stack."""
        for record in records:
            new = record.candidate.key not in self.stack.settings
            if new and self._allowed(record) and self._is_partner(record, self.stack.settings):
                self._try(record)

    def cost_on_top(self, candidate: Candidate) -> float:
        """The cost of compiling a candidate on top of the stack, relative to the usual compilation."""
        cost = self._catalog.cost({**self.stack.settings, **candidate.settings})
        return cost * (_CACHED_SHARE if self._keeps_the_code(candidate.key) else 1.0)

    def on_top(self, candidate: Candidate, stack: Settings | None = None) -> Settings | None:
        """The stack, or what it may become, with a candidate; None where that cannot be tried."""
        stack = self.stack.settings if stack is None else stack
        settings = stack.with_value(candidate.key, candidate.value)
        return None if self._catalog.conflict(settings) or not self._applies(candidate, stack) else settings

    def try_expensive(self, candidate: Candidate, *, ahead: Settings | None = None) -> TrialRecord | None:
        """Measure an expensive candidate on top of the stack; it stays when it helps. None when it cannot be tried.

        ``ahead`` is compiled meanwhile.
        """
        self.drop_rejected()
        settings = self.on_top(candidate)
        if settings is None:
            return None
        result = self._measure(settings, ahead=ahead)
        record = self._judge.record(candidate, settings, result)
        permitted = self._allowed(record)
        better = self._better_twice if self._keeps_the_code(candidate.key) else self._better
        if permitted and better(settings, result):
            self._keep(settings, result)
        elif self.stack.settings and candidate.key not in self.stack.settings and (permitted or not result.measured):
            self.stack.dropped[candidate.key] = _why_not_in_company(result)
        return record

    def offer(self, record: TrialRecord) -> None:
        """Try what an earlier session measured on top of a stack, as if it had been measured now."""
        if self._judge.yardstick.helps(record.result, record.comparison):
            self._try(record)

    def leave_one_out(self, keys: Iterable[str] | None = None, *, reserve_s: float | None = None) -> None:
        """Remove what no longer earns its place: of two within the noise, the simpler stays. ``keys``: these only.

        What earns it is exchanged for what it rules out, where that is better.
        """
        for key in list(self.stack.settings if keys is None else keys):
            self.drop_rejected()
            settings = self.stack.settings.without(key)
            unchanged = not settings or settings == self.stack.settings
            cached = self._keeps_the_code(key)
            if unchanged or not self._affordable(settings, reserve_s=reserve_s, cached=cached):
                continue
            result = self._measure(settings)
            if not self._acceptable(settings, result):
                continue
            if self._earns_no_place(key, result):
                self.stack.dropped[key] = "the others do as well without it"
                self._keep(settings, result)
            elif not self._is(key, Decision.ACCEPTED):
                self._exchange(key, settings, result, reserve_s=reserve_s)

    def _exchange(self, key: str, rest: Settings, without: TrialResult, *, reserve_s: float | None) -> None:
        """Try what a setting rules out in its place: ``rest`` are the others, which took ``without`` by themselves."""
        gain = self._judge.compare(self._known_stack).speedup / self._judge.compare(without).speedup
        if gain > _BEYOND_RIVALS:
            return
        for rival in self._ruled_out_by(key, rest):
            settings = rest.merged(rival.settings)
            if not self._affordable(settings, reserve_s=reserve_s):
                continue
            result = self._measure(settings)
            if self._better(settings, result):
                self.stack.dropped[key] = f"{rival.name} does more in its place"
                self._keep(settings, result)
                return

    def _ruled_out_by(self, key: str, rest: Settings) -> list[Candidate]:
        """What many workloads gain from and would be tried in company, but for this setting of the stack."""
        stack = self.stack.settings
        return [
            candidate
            for candidate in (*self._usual_tried(), *self._usual_untried())
            if candidate.key not in stack and self._fits(candidate, rest) and not self._fits(candidate, stack)
        ]

    def drop_rejected(self) -> bool:
        """Take out what the person rejected, and measure the rest: what comes next builds on that.

        When the rest fails, the best single setting is begun with again. False when there is no time to measure it:
        then the stack stays as it is, for a time when there is.
        """
        dropped = self.stack.dropped
        for key in [key for key, why in dropped.items() if why == REJECTED and not self._is(key, Decision.REJECTED)]:
            del dropped[key]
        gone = [key for key in self.stack.settings if self._is(key, Decision.REJECTED)]
        if not gone:
            return True
        rest = self._compatible(Settings({key: v for key, v in self.stack.settings.items() if key not in gone}))
        result = self._measured_alone(rest)
        if rest and result is None and not self._affordable(rest, reserve_s=0.0):
            return False
        dropped.update(dict.fromkeys(gone, REJECTED))
        if rest and result is None:
            result = self._measure(rest)
        if result is None or self._acceptable(rest, result):
            self._keep(rest, result)
        else:
            self._begin_with_the_best(rest, f"without {' and '.join(gone)} the others fail together: {result.reason}")
        return True

    def _measured_alone(self, settings: Settings) -> TrialResult | None:
        """The result of the trial that a single setting had by itself."""
        return next((r.result for r in self._known if r.settings == settings and r.result.measured), None)

    def _begin_with_the_best(self, failing: Settings, why: str) -> None:
        """The best single setting in place of a combination that fails."""
        self._say(why)
        self.stack.dropped.update(dict.fromkeys(failing, why))
        best = next((record for record in self._winners(self._known) if record.alone), None)
        if best is not None:
            self.stack.dropped.pop(best.candidate.key, None)
        self._keep(Settings(best.settings if best else {}), best.result if best else None)

    def _keeps_the_code(self, key: str) -> bool:
        """Whether the compiler has most often seen all of the code with and without a setting."""
        return self._catalog.by_key(key).stage in _KEEP_THE_CODE

    def _is(self, key: str, decision: Decision) -> bool:
        """Whether this is what the person said of the recipe that owns a setting."""
        return self._decision(self._catalog.by_key(key).id) is decision

    def _earns_no_place(self, key: str, without: TrialResult) -> bool:
        """Whether the stack does as well without a setting; better, when the person asked for the setting."""
        stack = self.stack.result
        if self._is(key, Decision.ACCEPTED):
            return stack is not None and self._beats(without, stack)
        if self._beats(stack, without):
            return False
        recipe, by = self._catalog.by_key(key), self._judge.yardstick
        if by.goal.by_time and recipe.is_usual(self.stack.settings[key], self._judge.mode):
            return self._does_without_the_usual(without)
        return True

    def _does_without_the_usual(self, without: TrialResult) -> bool:
        """Whether the stack is as fast without what most workloads gain from.

        When it seems faster, more often one of the two processes ran slower as a whole than the setting is at fault:
        graphs of short kernels were seen to take 9 % longer in one process than in the next.
        """
        if self._beats(without, self._known_stack, margin=_BETTER):
            self._measure_stack_again()
            return self._beats(without, self._known_stack, margin=_CLEARLY_BETTER)
        return self._judge.yardstick.speed_ratio(without, self._known_stack) >= _AS_FAST

    def _measure_stack_again(self) -> None:
        """Keep the better of two runs of the stack, once; nothing when there is no time for the second."""
        settings, before = self.stack.settings, self._known_stack
        if settings in self._measured_twice:
            return
        if not self._affordable(settings, cached=True, again=True):
            return
        self._measured_twice.add(settings)
        again = self._judge.checked(self._run(settings))
        if self._acceptable(settings, again) and self._beats(again, before):
            self._measured[settings] = again
            self._keep(settings, again)

    @property
    def _known_stack(self) -> TrialResult:
        assert self.stack.result is not None, "a stack with settings was measured"
        return self.stack.result

    def _compatible(self, settings: Settings) -> Settings:
        """Settings without those that need what is no longer among them."""
        while settings and (reason := self._catalog.conflict(settings)):
            one_less = (key for key in settings if not self._catalog.conflict(settings.without(key)))
            key = next(one_less, list(settings)[-1])
            self.stack.dropped[key] = reason
            settings = settings.without(key)
        return settings

    def _leap(self, winners: list[TrialRecord], *, compiling: bool) -> None:
        """Try the winners and all usual values at once, and keep that when it is best.

        Where it is not, or fails, those that ran by themselves are tried without those that nobody has tried.
        """
        tried = [*(record.candidate for record in winners), *self._usual_tried()]
        hoped = self._usual_untried()
        won = {record.candidate.key for record in winners}
        for settings in dict.fromkeys((self._company([*tried, *hoped]), self._company(tried))):
            if len(settings) < 2 or not self._affordable(settings):
                continue
            result = self._measure(settings)
            if self._is_best_yet(winners, settings, result, compiling=compiling):
                self._keep(settings, result)
                self._unproven = [key for key in settings if key not in won]
                return

    def _usual_tried(self) -> list[Candidate]:
        return [record.candidate for record in sorted(self._known, key=_slowness) if self._is_usual(record)]

    def _usual_untried(self) -> list[Candidate]:
        return [candidate for candidate in self._untried if self._is_hoped_for(candidate)]

    def _is_best_yet(
        self, winners: list[TrialRecord], settings: Settings, result: TrialResult, *, compiling: bool
    ) -> bool:
        """Whether a combination is better than the best winner; as good as it, where it is about to be compiled.

        Compiled the others may gain.
        """
        if not winners or not self._acceptable(settings, result):
            return self._better(settings, result)
        if compiling:
            return not self._beats(winners[0].result, result)
        return self._beats(result, winners[0].result)

    def _is_usual(self, record: TrialRecord) -> bool:
        """Whether many workloads gain from a candidate, and this one lost no great deal by it alone."""
        recipe, by = self._catalog[record.candidate.recipe], self._judge.yardstick
        usual = self._has_usual_value(record.candidate) and not recipe.expensive and self._allowed(record)
        gain = None if by.goal.by_time else by.gain(record.result, record.comparison)
        if gain is not None and gain.lost:  # what takes more memory or energy alone takes it in company
            return False
        return usual and record.comparison is not None and record.comparison.speedup > _HOPELESS

    def _is_hoped_for(self, candidate: Candidate) -> bool:
        """Whether many workloads gain from a candidate that was not tried, and nobody has ruled it out."""
        recipe = self._catalog[candidate.recipe]
        rejected = self._is(recipe.key, Decision.REJECTED)
        return self._has_usual_value(candidate) and not recipe.expensive and not rejected

    def _has_usual_value(self, candidate: Candidate) -> bool:
        return self._catalog[candidate.recipe].is_usual(candidate.value, self._judge.mode)

    def _is_neutral(self, record: TrialRecord) -> bool:
        """Whether a candidate may enter that alone neither gained nor lost by the objective, nor cost much speed.

        What is meant to save memory costs speed in company too, and a fresh interpreter is not started for a guess.
        """
        candidate, by = record.candidate, self._judge.yardstick
        recipe = self._catalog[candidate.recipe]
        if recipe.expensive or candidate.already_on or not (record.alone and self._allowed(record)):
            return False
        if recipe.stage is Stage.ENVIRONMENT or (recipe.saves_memory and not self._has_usual_value(candidate)):
            return False
        gain = by.gain(record.result, record.comparison)
        speed = record.comparison.speedup if record.comparison else 0.0
        return gain is not None and not gain.lost and speed > _HOPELESS

    def _company(self, candidates: Iterable[Candidate], settings: Settings = _NONE) -> Settings:
        """These settings with those candidates', but for what conflicts with one before it or is done for by another.

        What leaves nothing to do to one added before it takes its place: which of them comes first is often chance.
        """
        added: list[Candidate] = []
        for candidate in candidates:
            if candidate.key in settings or not self._fits(candidate, settings):
                continue
            settings = settings.merged(candidate.settings)
            added.append(candidate)
            for other in [other for other in added if not self._applies(other, settings)]:
                settings = settings.without(other.key)
                added.remove(other)
        return settings

    def _fits(self, candidate: Candidate, settings: Settings) -> bool:
        """Whether a candidate conflicts with none of these settings, and is done for by none."""
        conflict = self._catalog.conflict(settings.merged(candidate.settings))
        return not conflict and self._applies(candidate, settings)

    def _winners(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        return best_per_recipe(filter(self._allowed, records), self._judge.yardstick)

    def _values(self, best: TrialRecord, known: Iterable[TrialRecord]) -> list[TrialRecord]:
        """The values of a winning recipe to try: the best, or all in order where the first has fewer side effects.

        Of a ladder also those that did as well alone: once the others have made the rest of the step faster, more
        workers can be of use than before.
        """
        recipe, by = self._catalog[best.candidate.recipe], self._judge.yardstick
        own = [record for record in known if record.candidate.recipe == recipe.id and self._allowed(record)]
        if recipe.replacement_margin != 1.0:
            return [record for record in own if by.helps(record.result, record.comparison)]
        if not recipe.ladder:
            return [best]
        others = [record for record in own if record.alone and record.candidate != best.candidate]
        return [best, *(record for record in others if not self._beats(best.result, record.result))]

    def _try(self, record: TrialRecord) -> None:
        """Keep the stack with this candidate added, or with its value in place of another, if that is better."""
        self.drop_rejected()
        key = record.candidate.key
        settings = self.stack.settings.merged(record.candidate.settings)
        if settings == self.stack.settings or not self._allowed(record):
            return
        reason = self._catalog.conflict(settings)
        if not reason and not self._applies(record.candidate, self.stack.settings):
            reason = "the others leave it nothing to do"
        if reason:
            self.stack.dropped.setdefault(key, reason)
            return
        if settings == record.settings:
            result = record.result
        elif self._affordable(settings, at_least_s=record.result.wall_s or 0.0):
            result = self._measure(settings)
        else:
            self.stack.dropped.setdefault(key, "the budget ran out before it was tried in company")
            return
        margin = self._catalog[record.candidate.recipe].replacement_margin if key in self.stack.settings else 1.0
        wanted = key not in self.stack.settings and self._is(key, Decision.ACCEPTED)
        if self._no_worse(settings, result) if wanted else self._better(settings, result, margin=margin):
            self._keep(settings, result)
        elif key not in self.stack.settings:
            slower = wanted and result.measured
            self.stack.dropped[key] = "it makes the others slower" if slower else _why_not_in_company(result)

    def _measure(self, settings: Settings, *, ahead: Settings | None = None) -> TrialResult:
        if settings not in self._measured:
            self._measured[settings] = result = self._judge.checked(self._run(settings, ahead))
            if self._acceptable(settings, result):
                self._combined(settings, result)
        return self._measured[settings]

    def _run(self, settings: Settings, ahead: Settings | None = None) -> TrialResult:
        spec = self._bench.spec(f"stack: {settings}", settings, reserve_s=self._reserve_s(), at_least_s=ENERGY_S)
        return self._bench.run(spec, cost=self._catalog.cost(settings), ahead=ahead)

    def _keep(self, settings: Settings, result: TrialResult | None) -> None:
        self.stack.settings, self.stack.result = settings, result
        for key in settings:
            self.stack.dropped.pop(key, None)
        self._progress(self.stack)

    def _better(self, settings: Settings, result: TrialResult, *, margin: float = 1.0) -> bool:
        """Whether a combination is acceptable and better than the stack so far."""
        if not self._acceptable(settings, result):
            return False
        if self.stack.result is not None:
            return self._beats(result, self.stack.result, margin)
        return self._judge.yardstick.helps(result, self._judge.compare(result))

    def _better_twice(self, settings: Settings, result: TrialResult) -> bool:
        """As :meth:`_better`; where the gain is small, better than a second run of the stack too.

        What is tried because it might gain, and gains as little as one process gains over the next, is no gain.
        """
        better = self._better(settings, result)
        if not better or self.stack.result is None or self._beats(result, self.stack.result, margin=_CLEARLY_BETTER):
            return better
        self._measure_stack_again()
        return self._better(settings, result)

    def _no_worse(self, settings: Settings, result: TrialResult) -> bool:
        """Whether a combination is acceptable and not measurably slower than the stack so far."""
        if not self._acceptable(settings, result):
            return False
        if self.stack.result is not None:
            return not self._beats(self.stack.result, result)
        return self._judge.compare(result).verdict is not Verdict.SLOWER

    def _beats(self, result: TrialResult | None, other: TrialResult, margin: float = 1.0) -> bool:
        if result is None:
            return False
        return self._judge.yardstick.beats(result, other, self._judge.compare(result), margin=margin)

    def _acceptable(self, settings: Settings, result: TrialResult) -> bool:
        """Whether a combination ran, fits the memory limit, and changes no more than was allowed or consented to.

        Where the baseline exceeds the limit, one that exceeds it may be a step on the way.
        """
        request, by = self._bench.request, self._judge.yardstick
        if not result.measured or not (by.too_large or by.goal.fits(result)):
            return False
        numerics = self._judge.numerics(settings, result)
        allowed = max(request.allow.severity, numerics.declared.severity, self._consented(settings))
        return numerics.decisive.severity <= allowed

    def _consented(self, settings: Settings) -> int:
        """The severity of what the accepted among these settings were seen to change."""
        seen = (
            record.numerics.decisive.severity
            for record in self._known
            if record.numerics and settings.get(record.candidate.key) == record.candidate.value
            if self._decision(record.candidate.recipe) is Decision.ACCEPTED
        )
        return max(seen, default=0)

    def _affordable(
        self,
        settings: Settings,
        *,
        at_least_s: float = 0.0,
        reserve_s: float | None = None,
        cached: bool = False,
        again: bool = False,
    ) -> bool:
        """Whether there is time for a combination, ``again`` also for one that is measured.

        ``cached``: the compiler has seen all of its code.
        """
        if settings in self._measured and not again:
            return True
        budget = self._bench.budget
        cost = self._catalog.cost(settings) * (_CACHED_SHARE if cached else 1.0)
        expected_s = max(at_least_s, budget.expected_s(cost=cost), budget.expected_s())
        if self._catalog.environment(settings):
            expected_s += budget.interpreter_s
        return budget.allows(expected_s, reserve_s=self._reserve_s() if reserve_s is None else reserve_s)

    def _is_partner(self, record: TrialRecord, settings: Settings) -> bool:
        """Whether a candidate is known to help beside one of these settings, and did no great harm alone.

        What saves memory and is too slow alone is company for whatever is faster.
        """
        recipe = self._catalog[record.candidate.recipe]
        company = {other.id for other, _ in self._catalog.in_order(settings)}
        speedup = record.comparison.speedup if record.comparison else 0.0
        welcome = self._judge.yardstick.too_slow(record.result, record.comparison) and bool(settings)
        return (welcome or bool(company & recipe.partners)) and speedup > _HOPELESS


def _why_not_in_company(result: TrialResult) -> str:
    """Why a candidate does not stay in the stack, by the result of the whole with it."""
    if not result.measured:
        return f"together with the others it fails: {result.reason}"
    return "it adds nothing to the others"


def _slowness(record: TrialRecord) -> float:
    """The key that sorts records by their speed alone, the fastest first."""
    return -(record.comparison.speedup if record.comparison else 0.0)
