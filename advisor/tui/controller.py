"""Carries out the person's commands to a session: pause or skip, accept or reject a setting, run a trial again.

A running session is called directly. Measurements after it are jobs: one job runs at a time, in a separate thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App

from advisor.experiment.control import Decision
from advisor.experiment.measuring.verification import may_be_verified
from advisor.experiment.state import SessionState
from advisor.export.formats import format_of
from advisor.figures.formatting import counted
from advisor.machine.hardware import sample_gpus
from advisor.machine.host import CoresInUse
from advisor.records import Value, text_of
from advisor.report.figures import count_untried
from advisor.tui.context import Context, Job
from advisor.tui.text import trial_name

if TYPE_CHECKING:
    from advisor.experiment.session import Session

MINUTE_S = 60.0
SESSION_GROUP = "session"
MEASURING, REWORK, MORE = "Measuring", "Measuring the combination again", "Trying more"
# A machine is quiet if other programs use less than half a core, and no GPU is busier than 10 %, twice for 2 seconds.
_QUIET_LOOKS, _LOOKS_FOR_S, _QUIET_CORES, _BUSY_GPU_PERCENT = 2, 2.0, 0.5, 10


class Controller:
    """Carries out the person's commands. ``changed`` draws the screen after one."""

    def __init__(self, app: App[Any], context: Context, changed: Callable[[], None]) -> None:
        self._app, self._context, self._changed = app, context, changed
        self._decided_meanwhile = False

    def add(self, job: Job) -> None:
        """Run a job when its turn comes. A job is not added if one of the same name waits already."""
        jobs = self._context.jobs
        if all(job.name != other.name for other in jobs[1:]):
            jobs.append(job)
            if len(jobs) == 1:
                self._in_thread(job.call, SESSION_GROUP)

    def job_done(self) -> None:
        """Remove the first job, which has ended, and run the next one."""
        del self._context.jobs[0]
        if self._context.jobs:
            self._in_thread(self._context.jobs[0].call, SESSION_GROUP)

    def _in_thread(self, call: Callable[[], None], group: str = "steering") -> None:
        self._app.run_worker(call, group=group, thread=True, exit_on_error=False)

    def can(self, name: str) -> bool:
        """Whether a key that steers the session does anything now."""
        context, state = self._context, self._context.state
        untried, measured = count_untried(state) > 0, state.baseline is not None
        if context.control is None or state.failure:
            return False
        live, busy = state.finished is None, bool(context.jobs)
        offered = {
            "skip": live and measured and not state.paused,  # also between two trials: the keys would jump
            "pause": live and not context.paused,
            "wait": context.can_wait,
            "go_on": live and context.paused,
            "minute": live or measured,
            "untried": not live and not busy and untried,
            "finish": live and measured,
            "stop": not live and busy,
        }
        return offered[name]

    def steer(self, name: str) -> None:
        """Carry out a key that steers the session."""
        control = self._context.control
        if control is not None and self.can(name):
            step: Callable[[Session], str] = getattr(self, f"_{name}")
            self._app.notify(step(control))

    def _skip(self, control: Session) -> str:
        if not self._context.state.running:
            return "Nothing runs just now."
        control.skip()
        return f"Skipped: {trial_name(self._context.state.running)}."

    def _pause(self, control: Session) -> str:
        self._context.paused = True
        control.pause()
        return f"Paused{' after the running trial' if self._context.state.running else ''}. Space goes on."

    def _wait(self, control: Session) -> str:
        """Pause until other programs leave the machine alone."""
        self._pause(control)
        # A daemon thread, so that the app can close without waiting for it.
        threading.Thread(target=self._go_on_when_quiet, args=(control,), name="quiet", daemon=True).start()
        return "Waiting until this machine is quiet. Space goes on at once."

    def _go_on_when_quiet(self, control: Session) -> None:
        quiet = 0
        while quiet < _QUIET_LOOKS and self._context.paused:
            cores = CoresInUse()
            time.sleep(_LOOKS_FOR_S)
            busy = any((sample.utilization_percent or 0) > _BUSY_GPU_PERCENT for sample in sample_gpus())
            # Until the pause has begun, a trial of ours may still run and use the GPU.
            quiet = quiet + 1 if self._context.state.paused and not busy and cores.foreign() < _QUIET_CORES else 0
        if self._context.paused:
            self._go_on(control)

    def _go_on(self, control: Session) -> str:
        self._context.paused = False
        control.go_on()
        return "Measuring goes on."

    def _minute(self, control: Session) -> str:
        self._context.added_s += MINUTE_S
        if self._context.state.finished is None:
            self._in_thread(partial(control.extend, MINUTE_S))
        else:
            self.add(Job(MORE, partial(control.try_more, MINUTE_S)))
        return "+1 minute."

    def _finish(self, control: Session) -> str:
        self._context.paused = False
        control.finish()
        return "Ending now with what was measured."

    def _untried(self, control: Session) -> str:
        count = count_untried(self._context.state)
        self.add(Job(MORE, partial(control.try_more, None)))
        return f"Trying {counted(count, 'more setting')}. x stops it."

    def _stop(self, control: Session) -> str:
        """Stop the jobs that measure after the session; the session keeps all its results."""
        if self._context.jobs:
            control.stop()
        return "Stopped: t measures it again, + goes on for a minute."

    def decide(self, recipe: str, decision: Decision, value: Value | None = None) -> None:
        """Accept or reject a recipe; with a ``value``, accept only that value."""
        state = self._context.state
        if self._context.recorded is not None:  # a recorded session cannot measure: name the command that can
            chosen = f"--accept {_named(recipe, value)}" if decision is Decision.ACCEPTED else f"--skip {recipe}"
            self._app.notify(f"Go on with: perf-advisor --resume {self._context.session_id} {chosen}")
            return
        control = self._context.control
        self._app.notify(consequence(state, recipe, decision, value))
        if control is not None:
            self._decided_meanwhile = state.finished is None
            control.decide(recipe, decision, value)
            self._rework()
        self._changed()

    def session_finished(self) -> None:
        """Measure the combination again if the person has decided on a setting during the session."""
        if self._decided_meanwhile:
            self._rework()

    def _rework(self) -> None:
        """After the session: measure the combination that the decisions give, once more if that is running already."""
        state, control = self._context.state, self._context.control
        over = state.finished is not None and not state.finished.cancelled and state.failure is None
        if control and over and self._app.is_running:
            self.add(Job(REWORK, control.rework))

    def retry(self, name: str) -> None:
        """Run the trial of a candidate when nothing else runs; for any other name, measure the combination."""
        control, state = self._context.control, self._context.state
        if control is None or state.failure:
            return
        job = Job(REWORK, control.rework)
        if name in state.trials:
            again = " again" if state.has_run(name) else ""
            if state.finished is None:
                self._app.notify(f"{name} is tried{again} when the session is through.")
            job = Job(f"Trying {name}{again}", partial(control.retry, name), name)
        self.add(job)
        self._changed()

    def verify(self, format_id: str, path: Path) -> None:
        """Time a plain loop with an exported file, after the present measurement."""
        state, control = self._context.state, self._context.control
        verifies = self._context.outputs.verify and may_be_verified(state)
        exported = format_of(format_id).verifiable(self._context.found(state), str(path)) if verifies else None
        if control is not None and exported is not None and state.stack is not None:
            self.add(Job(f"Verifying {path.name}", partial(control.verify, exported, state.stack)))
            self._changed()


def consequence(state: SessionState, recipe: str, decision: Decision, value: Value | None = None) -> str:
    """The sentence that says what a decision changes; shown before it is carried out."""
    keys = {one.key for one in state.candidates.values() if one.recipe == recipe and value in (None, one.value)}
    rejected, used = decision is Decision.REJECTED, any(key in state.stack_settings for key in keys)
    told = f"{_named(recipe, value)} is {'left out' if rejected else 'accepted'}"
    if used is not rejected:  # nothing changes in the combination
        return f"{told}."
    return f"{told}; the combination is measured {'next' if state.finished is None else 'now'}."


def _named(recipe: str, value: Value | None) -> str:
    return recipe if value is None else f"{recipe}={text_of(value)}"
