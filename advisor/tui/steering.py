"""The keys that steer a session: skip, pause, more time, an early end. What each does, and when it is offered.

A running session is asked directly; what comes after it is a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from advisor.experiment.state import SessionState
from advisor.figures.formatting import counted
from advisor.report.conclusions import count_untried
from advisor.tui.jobs import Job
from advisor.tui.result import Then
from advisor.tui.text import trial_name

if TYPE_CHECKING:
    from advisor.experiment.session import Session
    from advisor.tui.app import AdvisorApp


MINUTE_S = 60.0
_WIDEST_NAME = 40
REWORK = "Measuring the stack again"
MORE = "Trying more"
_AFTER_STOP = {
    REWORK: "Key t on the stack in view 3 measures it, and so does the next decision.",
    MORE: "Key + goes on for a minute.",
}
# What a recorded session that is continued gets, by the key that continues it; as much as it had without an entry.
_MORE_S = {"minute": MINUTE_S}


class Steering:
    """Obeys the person."""

    def __init__(self, app: AdvisorApp) -> None:
        self._app = app
        self._does: dict[str, Callable[[Session], None]] = {
            "skip": self._skip,
            "pause": self._pause,
            "go_on": self._go_on,
            "minute": self._minute,
            "untried": self._untried,
            "finish": self._finish,
            "stop": self._stop,
        }

    def can(self, name: str) -> bool:
        """Whether an action does anything now."""
        state, busy = self._app.context.state, bool(self._app.jobs.busy_with)
        if self._app.context.recorded is not None:
            return self._can_go_on(name)
        if self._app.context.control is None or state.failure or name == "continue":
            return False
        live = state.finished is None
        measured = state.baseline is not None
        offered = {
            "skip": live and measured and not state.held,  # also between two trials: the keys would jump
            "pause": live and not self._app.context.paused,
            "go_on": live and self._app.context.paused,
            "minute": live or measured,
            "untried": not live and not busy and count_untried(state) > 0,
            "finish": live and measured,
            "stop": not live and busy,
        }
        return offered[name]

    def do(self, name: str) -> None:
        """Carry out the action of this name."""
        control, recorded = self._app.context.control, self._app.context.recorded
        if not self.can(name):
            return
        if recorded is not None:
            self._app.go_on_with(Then(recorded.past.session_id, measures=True, budget_s=_MORE_S.get(name)))
        elif control is not None:
            self._does[name](control)

    def _can_go_on(self, name: str) -> bool:
        """Whether a key continues a recorded session: for as long as it had, or for a minute."""
        if name == "untried":
            return count_untried(self._app.context.state) > 0
        return name in ("continue", "minute")

    # --- while the session runs ------------------------------------------------------------------------------------

    def _skip(self, control: Session) -> None:
        name = self._app.context.state.running
        if not name:
            self._app.tell("No trial runs just now: there is nothing to skip.")
            return
        control.skip()
        self._app.tell(
            f"{trial_name(name, _WIDEST_NAME)} is skipped. {consequence_of_skipping(name, self._app.context.state)}"
        )

    def _pause(self, control: Session) -> None:
        self._app.context.paused = True
        control.pause()
        after = " after the running trial" if self._app.context.state.running else ""
        self._app.tell(f"The session pauses{after}. Space goes on; the time left stands still meanwhile.")

    def _go_on(self, control: Session) -> None:
        self._app.context.paused = False
        control.go_on()
        self._app.tell("The session goes on.")

    def _minute(self, control: Session) -> None:
        self._app.context.countdown.begin_anew(MINUTE_S)
        if self._app.context.state.finished is None:
            self._app.run_in_thread(partial(control.extend, MINUTE_S))
            self._app.tell("One more minute: the session may try more before it ends.")
        else:
            self._more(control, MINUTE_S)
            self._app.tell("One more minute of measuring.")

    def _finish(self, control: Session) -> None:
        self._app.context.paused = False
        control.finish()
        self._app.tell("The session ends now, and reports what it has measured.")

    # --- after it --------------------------------------------------------------------------------------------------

    def _untried(self, control: Session) -> None:
        count = count_untried(self._app.context.state)
        self._app.context.countdown.begin_anew()
        self._more(control, None)
        self._app.tell(f"Trying what had no time: {counted(count, 'candidate')}. Key x stops it.")

    def _more(self, control: Session, seconds: float | None) -> None:
        self._app.jobs.add(Job(MORE, partial(control.try_more, seconds)))

    def _stop(self, control: Session) -> None:
        """End measurements after the session; the session stays with all its results."""
        then = _AFTER_STOP.get(self._app.jobs.busy_with, "Key t tries it again.")
        self._app.jobs.forget_later()
        if self._app.jobs.running:
            control.stop()
        self._app.tell(f"Stopped. {then}")


def consequence_of_skipping(name: str, state: SessionState) -> str:
    """The consequence of skipping the running trial."""
    if name == "stack, confirmed":
        return "The stack's figure stays as measured once, not confirmed."
    if name.startswith("stack:"):
        return "A smaller stack is tried next."
    if state.candidate(name) is not None:
        return "Key t tries it later."
    return "The figures that need it stay as they are."


class GpusQuestion:
    """Asks on how many GPUs to train."""

    def __init__(self, app: AdvisorApp) -> None:
        self._app = app
        self._asked = False

    def ask_once(self) -> None:
        """Ask once the baseline is known, where the session is about one GPU; not over another question."""
        if not self._asked and self._app.context.gpus == 1 and len(self._app.screen_stack) == 1:
            self.ask()
        self._asked = True

    def ask(self) -> None:
        """Ask, where there is a choice."""
        from advisor.tui.screens import PickScreen

        context = self._app.context
        if not (self._app.is_running and (gpus := context.gpus_to_offer)):
            return
        counts = [1, *(2**power for power in range(1, gpus.bit_length()) if 2**power < gpus), gpus]
        names = ["One GPU", *(f"{count} GPUs" for count in counts[1:-1]), f"All {gpus} GPUs"]
        chosen = counts.index(context.gpus or gpus) if (context.gpus or gpus) in counts else 0
        about = "The search on one goes on meanwhile. Several share each batch, and get half of the time."
        title = f"This machine has {gpus} GPUs: train on how many?"
        screen = PickScreen(title, names, chosen, about)
        self._app.push_screen(screen, lambda place: None if place is None else self._use(counts[place]))

    def _use(self, count: int) -> None:
        context = self._app.context
        if count == context.gpus or context.control is None:
            return
        if not context.gpus_to_offer:
            self._app.tell("The search on one GPU is over. A new session with --gpus measures on several.")
            return
        self._app.run_in_thread(partial(context.control.use_gpus, count))
        after = "one GPU only" if count == 1 else f"{count} GPUs after the search on one"
        self._app.tell(f"The session measures on {after}. Key G changes it.")
