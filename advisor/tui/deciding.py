"""Accepting, rejecting, taking back and retrying: the consequences, and how the session is asked for them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.control import Decision
from advisor.experiment.measuring.verification import may_be_verified
from advisor.experiment.state import SessionState
from advisor.records import Value, text_of
from advisor.tui.context import Host, Recorded
from advisor.tui.jobs import Job
from advisor.tui.steering import REWORK


def consequence(
    state: SessionState, recipe: str, decision: Decision | None, value: Value | None = None, *, measures: bool = True
) -> str:
    """The consequence of a decision, told before it is taken. A recorded session ``measures`` nothing by itself."""
    if decision is None:
        return f"Undone: {recipe}."
    name = recipe if value is None else f"{recipe}={text_of(value)}"
    candidates = [candidate for candidate in state.candidates.values() if candidate.recipe == recipe]
    used = [c for c in candidates if state.stack_settings.get(c.key) == c.value]
    when = "next" if state.finished is None else "now"
    if decision is Decision.REJECTED:
        if not used:
            return f"{recipe} is left out."
        return f"{recipe} is left out; {'the rest is measured ' + when if measures else 'key c measures the rest'}."
    if any(value in (None, c.value) for c in used):
        return f"{name} stays."
    return f"{name} is accepted; {'it is measured with the others ' + when if measures else 'key c measures it'}."


class Decider:
    """Passes decisions on and remembers what they replaced. The stack follows ``delay_s`` after the last of them."""

    def __init__(self, app: Host, delay_s: float) -> None:
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

    def undo(self) -> None:
        """Undo the last decision, if there is one."""
        if self._replaced:
            self._take(*self._replaced.pop())
            self._context.can_undo = bool(self._replaced)

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
        """Run the trial of a candidate, or measure the combination, when nothing else runs."""
        control, state = self._context.control, self._context.state
        if control is None or state.failure:
            return
        if name not in state.trials:
            self._app.jobs.add(Job(REWORK, control.rework))
            return
        again = " again" if state.has_run(name) else ""
        if state.finished is None:
            self._app.tell(f"{name} is tried{again} when the session is through.")
        self._app.jobs.add(Job(f"Trying {name}{again}", partial(control.retry, name), name))
