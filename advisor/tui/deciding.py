"""Accepting, rejecting, taking back and retrying: the consequences, and how the session is asked for them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError
from advisor.experiment.control import Decision
from advisor.experiment.measuring.verification import may_be_verified
from advisor.experiment.state import SessionState
from advisor.records import Candidate, Value, text_of
from advisor.report.pareto import STACK
from advisor.tui.context import Recorded
from advisor.tui.jobs import Job
from advisor.tui.steering import REWORK

if TYPE_CHECKING:
    from advisor.tui.app import AdvisorApp


def can_decide(state: SessionState, candidate: Candidate, decision: Decision) -> bool:
    """Whether a decision is another than the present one on a candidate, and changes anything in the session."""
    return decision_on(state, candidate) is not decision and state.can_decide(candidate.recipe)


def decision_on(state: SessionState, candidate: Candidate) -> Decision | None:
    """The decision on a candidate; None where another value of its recipe is the accepted one."""
    decision = state.decisions.get(candidate.recipe)
    others = state.accepted_values.get(candidate.recipe, candidate.value) != candidate.value
    return None if decision is Decision.ACCEPTED and others else decision


def values_of(state: SessionState, recipe: str) -> list[Candidate]:
    """The candidates of a recipe, in the order of the plan."""
    return [candidate for candidate in state.candidates.values() if candidate.recipe == recipe]


def value_to_accept(state: SessionState, candidate: Candidate) -> Value | None:
    """The candidate's value where its recipe has several, of which only this one is accepted; else None."""
    return candidate.value if len(values_of(state, candidate.recipe)) > 1 else None


def consequence(
    state: SessionState, recipe: str, decision: Decision | None, value: Value | None = None, *, measures: bool = True
) -> str:
    """The consequence of a decision, told before it is taken. A recorded session ``measures`` nothing by itself."""
    name = recipe if value is None else f"{recipe}={text_of(value)}"
    candidates = values_of(state, recipe)
    stacked = any(state.stack_settings.get(c.key) == c.value for c in candidates)
    over = state.finished is not None
    if decision is None:
        return f"The decision on {recipe} is taken back."
    if decision is Decision.REJECTED:
        if stacked:
            then = "the stack is measured again without it" if measures else "key c measures the stack without it"
            return f"{recipe} is left out; {then}."
        tried = all(c.name in state.trials for c in candidates)
        return f"{recipe} stays out of the stack." if over or tried else f"{recipe} is not tried any more."
    if any(value in (None, c.value) and state.stack_settings.get(c.key) == c.value for c in candidates):
        return f"{name} stays in the stack."
    if not measures:
        return f"{name} is accepted; key c measures it in the stack."
    return f"{name} is accepted; it is measured in the stack {'now' if over else 'next'}."


def can_measure_stack(state: SessionState) -> bool:
    """Whether measuring the stack again was left undone: stopped, or cut short by the budget."""
    stack = state.stack
    return state.finished is not None and stack is not None and (stack.pending or not stack.confirmed)


class Decider:
    """Passes decisions on and remembers what they replaced. The stack follows ``delay_s`` after the last of them."""

    def __init__(self, app: AdvisorApp, delay_s: float) -> None:
        self._app = app
        self._context = app.context
        self.delay_s = delay_s
        self._meanwhile = False
        self._replaced: list[tuple[str, Decision | None, Value | None]] = []

    def decide(self, recipe: str, decision: Decision | None, value: Value | None = None) -> None:
        """Take a decision, or take it back (None), and tell the consequences."""
        state = self._context.state
        self._replaced.append((recipe, state.decisions.get(recipe), state.accepted_values.get(recipe)))
        self._take(recipe, decision, value)
        self._context.can_undo = bool(self._replaced)

    def undo(self) -> str:
        """Undo the last decision, and return the recipe that it was about."""
        recipe, decision, value = self._replaced.pop()
        self._take(recipe, decision, value)
        self._context.can_undo = bool(self._replaced)
        return recipe

    def _take(self, recipe: str, decision: Decision | None, value: Value | None) -> None:
        control, recorded = self._context.control, self._context.recorded
        if recorded is not None:
            self._keep(recorded, recipe, decision, value)
        if control is None:
            return
        self._app.tell(consequence(self._context.state, recipe, decision, value))
        self._meanwhile = self._context.state.finished is None
        control.decide(recipe, decision, value)
        self.rework_soon()

    def _keep(self, recorded: Recorded, recipe: str, decision: Decision | None, value: Value | None) -> None:
        """Keep a decision with a recorded session: it is followed once the session goes on."""
        told = consequence(self._context.state, recipe, decision, value, measures=False)
        try:
            event = recorded.decide(recipe, decision, value)
        except UsageError as error:
            self._replaced.pop()
            self._app.tell(f"{error.message} {error.hint}")
            return
        self._context.take(event)
        self._app.tell(told)

    def session_finished(self) -> None:
        """Have the stack follow decisions for which the session had no time."""
        if self._meanwhile:
            self.rework_soon()

    def rework_soon(self) -> None:
        """After the session: wait a moment for more decisions, then have the stack follow them all."""
        state, control = self._context.state, self._context.control
        over = state.finished is not None and not state.finished.cancelled and state.failure is None
        if control and over and self._app.alive:
            self._context.countdown.begin_anew()
            self._app.jobs.add_later(Job(REWORK, control.rework), self.delay_s)

    def verify(self, format_id: str, path: Path) -> None:
        """Time a plain loop with an exported file, once the present measurement has ended."""
        state, control, exporter = self._context.state, self._context.control, self._context.exporter
        exported = exporter.to_verify(format_id, path, state) if may_be_verified(state) else None
        if control is not None and exported is not None and state.stack is not None:
            self._app.jobs.add(Job(f"Verifying {path.name}", partial(control.verify, exported, state.stack)))

    def retry(self, name: str) -> None:
        """Run the trial of a candidate, or measure the stack, when nothing else runs."""
        control, state = self._context.control, self._context.state
        if control is None or state.failure:
            return
        if name == STACK:
            self._app.jobs.add(Job(REWORK, control.rework))
            return
        again = " again" if state.has_run(name) else ""
        if state.finished is None:
            self._app.tell(f"{name} is tried{again} when the session is through.")
        self._app.jobs.add(Job(f"Trying {name}{again}", partial(control.retry, name), name))
