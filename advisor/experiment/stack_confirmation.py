"""The proof of the stack: measured in turns with the baseline, and kept only when it serves the goal all the same."""

from __future__ import annotations

from advisor.experiment.confirmation import (
    Confirmation,
    Runs,
    confirm_in_turn,
    confirm_side_by_side,
    may_be_side_by_side,
)
from advisor.experiment.context import SessionContext
from advisor.experiment.search import Stack
from advisor.records import StackRecord
from advisor.settings import Settings


class StackConfirmation:
    """Confirms stacks. What the baseline shows meanwhile counts as its repeats."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def confirm(self, stack: Stack) -> None:
        """Confirm a stack and keep it; one that is empty, or turns out to be no better, leaves none."""
        context = self._context
        if stack.result is None or not stack.settings:
            self._keep_none(stack)
            return
        record = context.judge.stack(stack.settings, stack.result, stack.dropped)
        together = may_be_side_by_side(context.facts, context.judge.baseline, stack.result)
        self._keep_proven(self._side_by_side(record) if together else self._in_turn(record))

    def _side_by_side(self, record: StackRecord) -> StackRecord:
        context = self._context
        outcome = confirm_side_by_side(context.bench, record.settings)
        if isinstance(outcome, Confirmation):
            confirmed = context.judge.confirmed(record, outcome)
            self._confirm_the_only_one(record, outcome)
            context.judge.add_null(outcome.old)
            context.judge_again()
            return confirmed
        context.warn(f"the stack could not be confirmed side by side: {outcome.reason}")
        return self._in_turn(record)

    def _in_turn(self, record: StackRecord) -> StackRecord:
        context = self._context
        outcome = confirm_in_turn(context.bench, record.settings, context.catalog.cost(record.settings))
        if isinstance(outcome, Runs):
            confirmed = context.judge.confirmed_by_runs(record, outcome.new, outcome.old)
            self._confirm_the_only_one(record, outcome)
            for run in outcome.old:
                context.judge.add_repeat(run)
            context.judge_again()
            return confirmed
        context.warn(f"the stack could not be confirmed: {outcome.reason}")
        return record

    def _confirm_the_only_one(self, record: StackRecord, evidence: Confirmation | Runs) -> None:
        """What confirms a stack of one setting confirms the candidate, whose one trial may have told less."""
        for trial in self._context.records.values():
            if trial.settings == record.settings:
                self._context.judge.evidence[trial.candidate.name] = evidence

    def _keep_proven(self, record: StackRecord) -> None:
        """Keep a stack that its confirmation shows to serve the goal; another is emptied, and the person told."""
        by = self._context.judge.yardstick
        if by.worth(record.result, record.comparison):
            self._context.keep_stack(record)
            return
        why = f"together they {by.goal.not_better(2)}"
        if not by.goal.fits(record.result):
            why = "together they take more than the memory limit"
        self._context.warn(f"{why}, so none is kept: {Settings(record.settings)}")
        self._keep_none(Stack(dropped={**record.dropped, **dict.fromkeys(record.settings, why)}))

    def _keep_none(self, stack: Stack) -> None:
        """Nothing helps: the stack is empty, which is the baseline."""
        self._context.keep_stack(self._context.judge.empty_stack(stack.dropped))
