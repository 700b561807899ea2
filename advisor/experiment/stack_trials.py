"""The trials in the stack's company: the search for the stack, and what is tried on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from advisor.experiment import events
from advisor.experiment.context import SessionContext
from advisor.experiment.control import REJECTED
from advisor.experiment.head_start import may_compile_beside
from advisor.experiment.planning import Planning
from advisor.experiment.search import Stack, StackSearch
from advisor.records import Candidate, ParetoPoint, TrialResult
from advisor.settings import Settings


class StackTrials:
    """Has combinations measured: those that the search asks for, and candidates on top of the stack so far."""

    def __init__(self, context: SessionContext, planning: Planning) -> None:
        self._context = context
        self._planning = planning

    @cached_property
    def search(self) -> StackSearch:
        """The search: one for the whole session, begun with the first use, for which the baseline must be known."""
        context = self._context
        return StackSearch(
            context.bench,
            context.judge,
            context.catalog,
            allowed=context.may_enter,
            reserve_s=context.reserves.stack_s,
            applies=self._planning.applies,
            progress=self._stack_grew,
            say=context.warn,
            combined=self._combined,
            decision=context.decisions.of,
        )

    def drop_rejected(self) -> None:
        """Take out what the person rejected meanwhile."""
        self.search.drop_rejected()

    def proposed(self) -> list[Candidate]:
        """What recipes propose in the company of the stack so far only."""
        return self._planning.proposed_for(self.search.stack.settings)

    def try_on_top(self, candidates: Iterable[Candidate], *, reserve_s: Callable[[], float] | None = None) -> None:
        """Compile on top of the stack, and try what needs its company; then partners in the new company.

        ``reserve_s`` is what must be left of the budget: by default, to confirm.
        """
        context, search = self._context, self.search
        reserve_s = reserve_s or context.reserves.confirmation_s
        tried: list[Candidate] = []
        later = list(candidates)
        while later:
            candidate = later.pop(0)
            context.progress.tell()
            context.progress.trials_left = max(0, context.progress.trials_left - 1)
            if context.keep_reused(candidate):
                search.offer(context.records[candidate.name])
                continue
            cost = search.cost_on_top(candidate)
            fresh = bool(context.catalog.environment({**search.stack.settings, **candidate.settings}))
            if context.decisions.rejects(candidate.recipe):
                context.skip(candidate, REJECTED)
                continue
            if not context.reserves.affordable(cost=cost, fresh=fresh, reserve_s=reserve_s()):
                context.skip(candidate, context.reserves.too_late(cost=cost, fresh=fresh))
                continue
            record = search.try_expensive(candidate, ahead=self._ahead(candidate, later))
            if record is None:
                context.skip(candidate, f"it cannot be combined with the stack so far ({search.stack.settings})")
                continue
            context.keep(record)
            tried.append(candidate)
        if tried:
            search.add_partners(context.records.values())

    def _ahead(self, candidate: Candidate, later: Iterable[Candidate]) -> Settings | None:
        """What is most likely compiled after this candidate, to be compiled beside it; None where that may disturb."""
        context, catalog = self._context, self._context.catalog
        stack = self.search.on_top(candidate)
        if stack is None or not may_compile_beside(context, stack):
            return None
        for other in later:
            settings = self.search.on_top(other, stack)
            if settings is None or settings == stack or context.decisions.rejects(other.recipe):
                continue
            both = catalog.cost(stack) + catalog.cost(settings)
            affordable = context.reserves.affordable(cost=both, reserve_s=context.reserves.confirmation_s())
            return settings if affordable and may_compile_beside(context, settings) else None
        return None

    def _stack_grew(self, stack: Stack) -> None:
        """Tell of a stack that is within the limits: what is shown is what could be had at once."""
        context = self._context
        if stack.result is not None and context.request.goal.fits(stack.result):
            context.keep_stack(context.judge.stack(stack.settings, stack.result, stack.dropped))
            context.rank()
            context.progress.tell()

    def _combined(self, settings: Settings, result: TrialResult) -> None:
        """Keep what several settings did together: a choice between time and memory."""
        if result.peak_reserved_bytes is not None:
            comparison = self._context.judge.compare(result)
            point = ParetoPoint(str(settings), dict(settings), comparison, result.peak_reserved_bytes)
            self._context.emit(events.CombinationMeasured(point))
            self._context.combinations.append(point)
