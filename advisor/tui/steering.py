"""The keys that steer a session: skip, pause, more time, an early end. What each does, and when it is offered.

A running session is asked directly; what comes after it is a job of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from advisor.figures.formatting import counted
from advisor.machine.hardware import sample_gpus
from advisor.machine.host import CoresInUse
from advisor.report.conclusions import count_untried
from advisor.tui.context import Host
from advisor.tui.jobs import Job
from advisor.tui.leaving import Then
from advisor.tui.text import trial_name

if TYPE_CHECKING:
    from advisor.experiment.session import Session

MINUTE_S = 60.0
_WIDEST_NAME = 40
# A machine is quiet when so many looks in a row, each of so many seconds, see others use less than these.
_QUIET_LOOKS, _LOOKS_FOR_S, _QUIET_CORES, _BUSY_GPU_PERCENT = 2, 2.0, 0.5, 10
REWORK = "Measuring the combination again"
MORE = "Trying more"
_AFTER_STOP = {
    REWORK: "The next decision measures it again, and so does t on the combination.",
    MORE: "Key + goes on for a minute.",
}
# What a recorded session that is continued gets, by the key that continues it; as much as it had without an entry.
_MORE_S = {"minute": MINUTE_S}


class Steering:
    """Obeys the person."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._does: dict[str, Callable[[Session], None]] = {
            "skip": self._skip,
            "pause": self._pause,
            "wait": self._wait,
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
            "skip": live and measured and not state.paused,  # also between two trials: the keys would jump
            "pause": live and not self._app.context.paused,
            "wait": self._app.context.can_wait,
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
            self._app.tell("Nothing runs just now.")
            return
        control.skip()
        self._app.tell(f"Skipped: {trial_name(name, _WIDEST_NAME)}.")

    def _pause(self, control: Session) -> None:
        self._app.context.paused = True
        control.pause()
        after = " after the running trial" if self._app.context.state.running else ""
        self._app.tell(f"Paused{after}. Space goes on.")

    def _wait(self, control: Session) -> None:
        """Pause until other programs leave the machine alone."""
        self._app.context.paused = True
        control.pause()
        # A thread of its own, which the end of the app does not wait for.
        threading.Thread(target=self._go_on_when_quiet, args=(control,), name="quiet", daemon=True).start()
        self._app.tell("Waiting until this machine is quiet. Space goes on at once.")

    def _go_on_when_quiet(self, control: Session) -> None:
        quiet = 0
        while quiet < _QUIET_LOOKS and self._app.context.paused:
            cores = CoresInUse()
            time.sleep(_LOOKS_FOR_S)
            busy = any((sample.utilization_percent or 0) > _BUSY_GPU_PERCENT for sample in sample_gpus())
            # A trial may still run, which is ours on a GPU too.
            quiet = quiet + 1 if self._app.context.state.paused and not busy and cores.foreign() < _QUIET_CORES else 0
        if self._app.context.paused:
            self._app.context.paused = False
            control.go_on()

    def _go_on(self, control: Session) -> None:
        self._app.context.paused = False
        control.go_on()
        self._app.tell("Measuring goes on.")

    def _minute(self, control: Session) -> None:
        self._app.context.countdown.begin_anew(MINUTE_S)
        if self._app.context.state.finished is None:
            self._app.run_in_thread(partial(control.extend, MINUTE_S))
            self._app.tell("+1 minute.")
        else:
            self._more(control, MINUTE_S)
            self._app.tell("+1 minute.")

    def _finish(self, control: Session) -> None:
        self._app.context.paused = False
        control.finish()
        self._app.tell("Ending now with what was measured.")

    # --- after it --------------------------------------------------------------------------------------------------

    def _untried(self, control: Session) -> None:
        count = count_untried(self._app.context.state)
        self._app.context.countdown.begin_anew()
        self._more(control, None)
        self._app.tell(f"Trying {counted(count, 'more setting')}. x stops it.")

    def _more(self, control: Session, seconds: float | None) -> None:
        self._app.jobs.add(Job(MORE, partial(control.try_more, seconds)))

    def _stop(self, control: Session) -> None:
        """End measurements after the session; the session stays with all its results."""
        then = _AFTER_STOP.get(self._app.jobs.busy_with, "Key t tries it again.")
        self._app.jobs.forget_later()
        if self._app.jobs.running:
            control.stop()
        self._app.tell(f"Stopped. {then}")
