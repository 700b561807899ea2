"""The stack follows the person's decisions: the rejected out, the accepted tried, and the whole confirmed again."""

from __future__ import annotations

from advisor.experiment.context import SessionContext
from advisor.experiment.control import Decision
from advisor.experiment.planning import Planning
from advisor.experiment.search import Stack
from advisor.experiment.solo import SoloTrials
from advisor.experiment.stack_confirmation import StackConfirmation
from advisor.experiment.stack_trials import StackTrials
from advisor.records import StackRecord


class Following:
    """Knows which decisions the search has followed, and which the confirmed stack.

    What was found and confirmed under a set of decisions is kept for when they come back.
    """

    def __init__(
        self,
        context: SessionContext,
        planning: Planning,
        solo: SoloTrials,
        stack_trials: StackTrials,
        confirmation: StackConfirmation,
    ) -> None:
        self._context = context
        self._planning = planning
        self._solo = solo
        self._stack_trials = stack_trials
        self._confirmation = confirmation
        # The version of the decisions that the search follows, that the confirmed stack follows (None before there is
        # one), and what was found under each set of them.
        self._searched = 0
        self._followed: int | None = None
        self._found: dict[frozenset[tuple[str, Decision]], tuple[Stack, StackRecord]] = {}

    @property
    def up_to_date(self) -> bool:
        """Whether the confirmed stack follows all that was decided."""
        return self._context.decisions.version == self._followed

    def begin(self) -> None:
        """The search begins: it knows of all that was decided so far."""
        self._searched = self._context.decisions.version

    def forget(self) -> None:
        """Find again what was found: a candidate's trial is run anew."""
        self._found.clear()

    def bring_in_line(self) -> bool:
        """Have the search follow what was decided since: the accepted tried, the rejected out, and then grown again.

        False when there is no time for it.
        """
        search = self._stack_trials.search
        while (version := self._context.decisions.version) != self._searched:
            self._solo.run(list(self._planning.no_longer_waiting()))
            if not search.drop_rejected():
                return False
            search.grow(self._context.records.values())
            self._tell_refused(search.stack)
            self._searched = version
        return True

    def confirm_found(self) -> None:
        """Confirm the stack that was found, unless it holds what the person rejected since, and there is no time."""
        context, search = self._context, self._stack_trials.search
        context.progress.enter("confirmation")
        if search.drop_rejected():
            stack = search.stack
            self._confirmation.confirm(stack)
            self._followed = self._searched
            if context.stack is not None and self.up_to_date:
                self._found[self._decided()] = (_copy(stack), context.stack)
        context.rank()

    def follow(self) -> None:
        """Find and confirm the stack that follows what was decided since; one that was found before is taken again."""
        context, search = self._context, self._stack_trials.search
        version, known = context.decisions.version, self._found.get(self._decided())
        if known is not None:
            stack, record = known
            search.stack = _copy(stack)
            self._searched = self._followed = version
            context.keep_stack(record)
            context.rank()
            return
        context.progress.enter("stack")
        if self.bring_in_line():
            self.confirm_found()

    def follow_in_time(self) -> None:
        """As :meth:`follow` while the session runs: when something was decided, and the budget has the time."""
        reserves, progress = self._context.reserves, self._context.progress
        if not self.up_to_date and reserves.affordable(reserve_s=reserves.confirmation_s()):
            stage = progress.stage
            self.follow()
            progress.enter(stage)

    def _decided(self) -> frozenset[tuple[str, Decision]]:
        return frozenset(self._context.decisions.all().items())

    def _tell_refused(self, stack: Stack) -> None:
        """Why something that the person accepted is not in the stack all the same."""
        for recipe, decision in self._context.decisions.all().items():
            key = self._context.catalog[recipe].key
            if decision is Decision.ACCEPTED and key not in stack.settings:
                why = stack.dropped.get(key, "alone it is not faster, or it needs more memory than there is")
                self._context.warn(f"{recipe} is accepted, but not in the stack: {why}")


def _copy(stack: Stack) -> Stack:
    """A stack that stays as it is when the search goes on with the other."""
    return Stack(stack.settings, stack.result, dict(stack.dropped))
