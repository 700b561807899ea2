"""Solo trials: candidates measured alone, one after another, as long as the budget has the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from advisor.experiment.baseline import BaselineMeasurements
from advisor.experiment.context import SessionContext
from advisor.experiment.control import REJECTED
from advisor.experiment.ladder import end_of_ladder, goes_on
from advisor.experiment.planning import Planning
from advisor.recipe import Stage
from advisor.records import Candidate, Outcome, TrialRecord

# Solo trials between two measurements of the baseline: what drifts meanwhile counts as noise.
_TRIALS_PER_BASELINE = 6


class SoloTrials:
    """Tries candidates alone. ``before_each`` is called before each: it follows what the person rejected meanwhile."""

    def __init__(
        self,
        context: SessionContext,
        planning: Planning,
        baseline: BaselineMeasurements,
        *,
        before_each: Callable[[], None],
    ) -> None:
        self._context = context
        self._planning = planning
        self._baseline = baseline
        self._before_each = before_each

    def run(self, candidates: Iterable[Candidate], *, reserve_s: float | None = None) -> None:
        """Try candidates, and before what is left of them those that the person accepts meanwhile.

        ``reserve_s`` is what they leave of the budget: by default, what the stack and its confirmation need.
        """
        context = self._context
        ended: dict[str, str] = {}
        measured = 0
        for candidate in self._with_accepted(candidates):
            self._before_each()
            context.progress.tell()
            context.progress.trials_left -= 1
            if context.keep_reused(candidate):
                continue
            if reason := self._why_not(candidate, ended, reserve_s):
                context.skip(candidate, reason)
                continue
            record = self.try_alone(candidate, reserve_s=reserve_s)
            context.rank()
            # Behind the first: a person sees an answer soon, then how much of it is noise.
            self._baseline.measure_control()
            measured += 1
            if measured % _TRIALS_PER_BASELINE == 0:
                self._baseline.repeat()
            if self._ends_ladder(record):
                ended[candidate.recipe] = end_of_ladder(record)

    def try_alone(self, candidate: Candidate, *, reserve_s: float | None = None) -> TrialRecord:
        """Measure a candidate alone. ``reserve_s`` is what must be left when it hangs: by default, to confirm."""
        context = self._context
        reserve_s = context.reserves.confirmation_s() if reserve_s is None else reserve_s
        spec = context.bench.spec(candidate.name, candidate.settings, reserve_s=reserve_s)
        result = context.bench.run(spec, cost=context.catalog.cost(candidate.settings))
        record = context.judge.record(candidate, candidate.settings, result)
        context.keep(record)
        return record

    def price_expensive(self, candidates: Iterable[Candidate]) -> None:
        """What compilation is worth alone, when there is time left: the person wants to know, the stack does not."""
        context = self._context
        for candidate in candidates:
            known = context.records.get(candidate.name)
            skipped = known is not None and known.result.outcome is Outcome.SKIPPED
            if known is None or not (skipped or (known.result.measured and not known.alone)):
                continue
            if context.decisions.rejects(candidate.recipe):
                continue
            if context.reserves.affordable(cost=context.catalog.cost(candidate.settings), reserve_s=0.0):
                self.try_alone(candidate, reserve_s=0.0)
        context.rank()

    def _with_accepted(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        for candidate in candidates:
            yield from self._planning.no_longer_waiting()
            yield candidate
        yield from self._planning.no_longer_waiting()

    def _why_not(self, candidate: Candidate, ended: dict[str, str], reserve_s: float | None) -> str:
        """Why a candidate is left out; empty when it is tried. ``ended`` are the ladders that go no further."""
        context, recipe = self._context, candidate.recipe
        if recipe in ended and not candidate.already_on:  # what one has is measured off in any case
            return ended[recipe]
        if context.decisions.rejects(recipe):
            return REJECTED
        if recipe in self._planning.passed_over and context.decisions.of(recipe) is None:
            return self._planning.passed_over[recipe]
        cost = context.catalog.cost(candidate.settings)
        needs_interpreter = context.catalog[recipe].stage is Stage.ENVIRONMENT
        fresh = needs_interpreter and not context.bench.has_interpreter(candidate.settings)
        if not context.reserves.affordable(cost=cost, fresh=fresh, reserve_s=reserve_s):
            return context.reserves.too_late(cost=cost, fresh=fresh)
        return ""

    def _ends_ladder(self, record: TrialRecord) -> bool:
        """Whether a candidate is of a ladder, and the last of it that is tried."""
        context = self._context
        if not context.catalog[record.candidate.recipe].ladder:
            return False
        planned, rate = self._planning.candidates, context.judge.baseline_rate
        return not goes_on(record, context.records.values(), planned, rate)
