"""Close calls: candidates that one trial has not decided, measured again in turn with the baseline."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.experiment.confirmation import (
    BLOCKS_PER_CANDIDATE,
    PAIRS_PER_CANDIDATE,
    Confirmation,
    Runs,
    confirm_in_turn,
    confirm_side_by_side,
    may_be_side_by_side,
)
from advisor.experiment.context import SessionContext
from advisor.experiment.ranking import CONTROL
from advisor.records import TrialRecord, TrialResult, Verdict


class CloseCalls:
    """Settles what is within reach of the noise, as far as the budget goes."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def settle_promising(self) -> None:
        """On a noisy machine, see in turn with the baseline which candidates help, before there is a stack.

        Only where two processes take turns block by block: whole trials in turn take longer than trying combinations.
        """
        context = self._context
        if context.noisy and not context.facts.on_cuda:
            allowed, by = list(filter(context.may_enter, context.records.values())), context.judge.yardstick
            promising = [r for r in allowed if _seems_faster(r) or by.may_keep_speed(r.result, r.comparison)]
            self.settle(promising, reserve_s=context.reserves.solo_s())

    def settle(self, records: Iterable[TrialRecord], *, reserve_s: float = 0.0) -> None:
        """Measure again, in turn with the baseline, what one trial has not decided; what is recommended first.

        ``reserve_s`` is what must be left of the budget.
        """
        context, judge = self._context, self._context.judge
        undecided = [record for record in records if record.alone and judge.is_close_call(record)]
        helps = judge.yardstick.helps
        for record in sorted(undecided, key=lambda r: (not helps(r.result, r.comparison), *_by_interest(r))):
            name = record.candidate.name
            unwanted = record.candidate.recipe == CONTROL or context.decisions.rejects(record.candidate.recipe)
            if unwanted or not self._fits(record, reserve_s):
                continue
            evidence = self._in_turn_with_baseline(record)
            if isinstance(evidence, TrialResult):
                context.warn(f"{name} could not be confirmed: {evidence.reason}")
                continue
            context.records[name] = judge.confirm(record, evidence)
            context.judge_again()
        context.rank()

    def _fits(self, record: TrialRecord, reserve_s: float) -> bool:
        budget = self._context.bench.budget
        once_s = budget.expected_s() + max(record.result.wall_s or 0.0, budget.expected_s())
        return budget.allows(PAIRS_PER_CANDIDATE * once_s, reserve_s=reserve_s)

    def _in_turn_with_baseline(self, record: TrialRecord) -> Confirmation | Runs | TrialResult:
        context, name, settings = self._context, record.candidate.name, record.settings
        if may_be_side_by_side(context.facts, context.judge.baseline, record.result):
            outcome = confirm_side_by_side(context.bench, settings, name=name, pairs=BLOCKS_PER_CANDIDATE)
            if isinstance(outcome, Confirmation):
                return outcome
        cost = context.catalog.cost(settings)
        return confirm_in_turn(context.bench, settings, cost, name=name, pairs=PAIRS_PER_CANDIDATE)


def _seems_faster(record: TrialRecord) -> bool:
    """Whether only the machine's noise keeps a candidate from being called faster."""
    undecided = record.verdict is Verdict.NO_DIFFERENCE and record.comparison is not None
    return undecided and record.comparison is not None and record.comparison.ci_low > 1


def _by_interest(record: TrialRecord) -> tuple[bool, bool, float]:
    """Close calls in the order of what a person wants settled: the fastest, then the slower, then the undecided."""
    speedup = record.comparison.speedup if record.comparison else 0.0
    return record.verdict is Verdict.NO_DIFFERENCE, record.verdict is not Verdict.FASTER, -speedup
