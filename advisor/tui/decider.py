"""Carries out decisions: accept, reject, take back and retry are passed to the session, and the stack follows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError
from advisor.experiment.control import Decision
from advisor.experiment.measuring.verification import may_be_verified
from advisor.records import Value
from advisor.tui.context import Recorded
from advisor.tui.deciding import consequence
from advisor.tui.jobs import Job
from advisor.tui.steering import REWORK
from advisor.tui.views.trial_rows import STACK

if TYPE_CHECKING:
    from advisor.tui.app import AdvisorApp


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
