"""The state that all views share (the session, the jobs, the time left), and the lines printed when the app closes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advisor.experiment import events
from advisor.experiment.past.journal import PastSession
from advisor.experiment.request import Outputs, Request
from advisor.experiment.state import SessionState
from advisor.export.format import Found
from advisor.figures.formatting import counted
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.report.figures import candidates_tried
from advisor.report.rows import Ranking, ranking, together_of

if TYPE_CHECKING:
    from advisor.experiment.session import Session

# The least time left that is shown while the session runs, as it may run longer than estimated. Seconds.
_LEAST_LEFT_S = 1.0
# Events that come many times a second from the running trial and the clock. They change no result.
_LIVE = (events.TrialActivity, events.BlockTimed, events.ProgressMade)


def is_about_others(said: events.Said) -> bool:
    """Whether the session warns of other programs on this machine, or of noise."""
    return said.severity != "information" and said.about in ("company", "noise")


@dataclass(frozen=True, slots=True)
class Job:
    """A blocking call of the session, with its name in the status bar. ``trial`` is empty if the call runs no trial."""

    name: str
    call: Callable[[], None]
    trial: str = ""


@dataclass
class Context:
    """The state that the views share by reference; only the app changes it, and only in the UI thread.

    ``version`` grows with each change that a view may show, except the events of a running trial (``_LIVE``).
    """

    request: Request
    outputs: Outputs
    session_id: str = ""
    control: Session | None = None
    catalog: Catalog | None = None
    state: SessionState = field(default_factory=SessionState)
    jobs: list[Job] = field(default_factory=list)  # the first one runs, the others wait
    paused: bool = False  # no further trial begins
    recorded: PastSession | None = None  # the recorded session on screen; None if the session measures
    saved: list[str] = field(default_factory=list)  # the paths of the files that the person wrote
    version: int = 0
    added_s: float = 0.0  # what the person has added to the budget
    clock: Callable[[], float] = time.monotonic  # seconds since any moment; the next three fields are read from it
    began_at: float = 0.0
    trial_began_at: float = 0.0
    left_told_at: float = 0.0
    _ranked: tuple[tuple[object, ...], Ranking] | None = None

    def __post_init__(self) -> None:
        self.began_at = self.clock()

    @property
    def busy_with(self) -> str:
        """The name of the running job; empty if no job runs."""
        return self.jobs[0].name if self.jobs else ""

    @property
    def budget_s(self) -> float:
        """The session's budget plus the seconds that the person has added."""
        return self.request.budget_s + self.added_s

    @property
    def left_s(self) -> float:
        """Seconds left, by the session's last estimate or, before the first one, by the budget; constant in a pause."""
        told_s, since = self.state.left_s, self.left_told_at
        if told_s is None:
            told_s, since = self.budget_s, self.began_at
        return told_s if self.state.paused else max(_LEAST_LEFT_S, told_s - (self.clock() - since))

    @property
    def tries(self) -> str:
        """The key that tries the settings left out for lack of time; for a recorded session, the command."""
        return f"perf-advisor --resume {self.session_id}" if self.recorded else "R"

    @property
    def ranking(self) -> Ranking:
        """The ranked settings, computed once per version."""
        wanted = (self.version, self.busy_with, self.catalog is None)
        if self._ranked is None or self._ranked[0] != wanted:
            self._ranked = wanted, ranking(self.state, self.catalog, working=bool(self.busy_with))
        return self._ranked[1]

    def found(self, state: SessionState) -> Found:
        """Return the inputs from which a format writes a file. Another thread may call this."""
        return Found(state, self.request, self.outputs, self.catalog or load_catalog(self.request.recipe_folders))

    @property
    def can_wait(self) -> bool:
        """Whether other programs disturb a running session, so that it can wait until the machine is quiet."""
        running = self.control is not None and self.state.finished is None
        return running and not self.paused and any(map(is_about_others, self.state.messages))

    def take(self, event: events.Event) -> None:
        """Update the state and the clocks for an event."""
        self.state.apply(event)
        self.version += not isinstance(event, _LIVE)
        match event:
            case events.ProgressMade() | events.Paused():
                self.left_told_at = self.clock()
            case events.TrialStarted():
                self.trial_began_at = self.clock()
            case events.SessionFinished() | events.SessionFailed():
                self.paused = False


def events_of(past: PastSession) -> Iterator[events.Event]:
    """Return the events of a recorded session, always with an end.

    A session that was killed ends as interrupted. One that was killed while it was resumed ends as it did before.
    """
    ends = [event for event in past.events if isinstance(event, events.SessionFinished | events.SessionFailed)]
    yield from past.events
    if not ends or ends[-1] is not past.events[-1]:
        yield ends[-1] if ends else events.SessionFinished(True, 0.0)


def closing_words(context: Context) -> Iterator[str]:
    """The lines that are printed after the app has closed: the result, the files and the commands to go on."""
    state, session_id, measured = context.state, context.session_id, context.recorded is None
    written = (f"Written: {', '.join(dict.fromkeys(context.saved))}.",) if context.saved else ()
    if measured and state.baseline is None and not state.trials:
        if not state.failure:
            yield "Nothing was measured."
        return
    if together := together_of(state):
        yield f"Result: {together.words} with {counted(len(state.stack_settings), 'setting')}, {together.steps} a step."
    if measured:
        count = len(candidates_tried(state))  # as the app counts: without the control and the settings not tried
        kept = f"The baseline and {counted(count, 'trial')} are kept" if count else "The baseline is kept"
        yield " ".join((f"{kept} in session {session_id}.", *written))
    else:
        yield from written
    yield f"Open it again with: perf-advisor open {session_id}"
    if measured and (state.finished is None or state.finished.cancelled):
        yield f"Go on with: perf-advisor --resume {session_id}"
