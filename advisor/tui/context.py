"""The views' shared context: the session's state, or a recorded session, the time left, and the app's collaborators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advisor.experiment import events
from advisor.experiment.events import Decided, Event, SessionFailed, SessionFinished
from advisor.experiment.past.journal import Journal, PastSession
from advisor.experiment.request import Outputs, Request
from advisor.experiment.state import SessionState
from advisor.export.format import Found
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.report.rows import Ranking, ranking

if TYPE_CHECKING:
    from advisor.experiment.session import Session

# Least time shown as left while the session goes on: the estimate may run out before it does. Seconds.
_LEAST_LEFT_S = 1.0


class Countdown:
    """Counts down from the session's last estimate. ``clock`` gives seconds, from anywhere; it stands still on hold.

    ``added_s`` is the time that the person has added to the budget.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at: float | None = None  # in seconds of the session
        self._told_s = self._trial_began_at = 0.0
        self._held_at: float | None = None
        self._began_at = clock()
        self.added_s = 0.0

    @property
    def session_s(self) -> float:
        """Seconds since the session was opened, without its pauses."""
        return (self._clock() if self._held_at is None else self._held_at) - self._began_at

    @property
    def trial_s(self) -> float:
        """Seconds since the running trial began."""
        return self.session_s - self._trial_began_at

    def trial_began(self) -> None:
        """A trial has begun just now."""
        self._trial_began_at = self.session_s

    def update(self, state: SessionState) -> None:
        """Take over a new estimate of the session, but none from a hold: waiting takes none of the time."""
        if state.left_s is not None and self._held_at is None:
            self._told_s, self._ends_at = state.left_s, self.session_s + state.left_s

    def add(self, more_s: float) -> None:
        """The person has added time. While the session waits no other estimate comes."""
        self.added_s += more_s
        if self._ends_at is not None:
            self._ends_at += more_s

    def hold(self, *, waiting: bool) -> None:
        """Stand still while the session waits, and go on after that."""
        if self._held_at is not None:
            self._began_at += self._clock() - self._held_at
        self._held_at = self._clock() if waiting else None

    def now(self, state: SessionState) -> tuple[float, float | None]:
        """The share of the session's time that has passed by now, and the seconds left, None where nobody knows."""
        if self._ends_at is None or not state.left_s or self._told_s <= _LEAST_LEFT_S:
            return state.progress, state.left_s
        left_s = max(_LEAST_LEFT_S, self._ends_at - self.session_s)
        return 1.0 - (1.0 - state.progress) * min(1.0, left_s / self._told_s), left_s


# What the running trial and the clock tell many times a second; it changes nothing that was found.
_LIVE = (events.TrialActivity, events.BlockTimed, events.ProgressMade)


def is_about_others(said: events.Said) -> bool:
    """Whether the session warns of other programs on this machine, or of noise."""
    return said.severity != "information" and said.about in ("company", "noise")


@dataclass
class Context:
    """Shared by reference; only the app changes it, and only in the UI thread.

    ``waiting`` names the trials that the person asked for and that have not begun. ``paused``: no further trial begins.
    ``version`` grows with all that a view may show, but not with the events that pour in while a trial runs: its
    activity, its blocks, the progress.
    ``recorded`` is the session that is shown again; None for one that measures. ``kept_trials``: the number that
    a resumed session had already. ``saved`` are the files that the person wrote, by their paths.
    """

    request: Request
    outputs: Outputs
    session_id: str = ""
    control: Session | None = None
    catalog: Catalog | None = None
    state: SessionState = field(default_factory=SessionState)
    countdown: Countdown = field(default_factory=Countdown)
    busy_with: str = ""
    waiting: tuple[str, ...] = ()
    paused: bool = False
    recorded: PastSession | None = None
    kept_trials: int = 0
    saved: list[str] = field(default_factory=list)
    version: int = 0
    _ranked: tuple[tuple[object, ...], Ranking] | None = None

    @property
    def budget_s(self) -> float:
        """The session's budget with what the person has added to it."""
        return self.request.budget_s + self.countdown.added_s

    @property
    def ranking(self) -> Ranking:
        """The ranked settings, computed once per version."""
        wanted = (self.version, self.busy_with, self.catalog is None)
        if self._ranked is None or self._ranked[0] != wanted:
            self._ranked = wanted, ranking(self.state, self.catalog, working=bool(self.busy_with))
        return self._ranked[1]

    def found(self, state: SessionState) -> Found:
        """The inputs with which a format writes a file. May be called from another thread."""
        return Found(state, self.request, self.outputs, self.catalog or load_catalog(self.request.recipe_folders))

    @property
    def can_wait(self) -> bool:
        """Whether a running session, beside other programs, can wait until the machine is quiet."""
        running = self.control is not None and self.recorded is None and self.state.finished is None
        return running and not self.paused and any(is_about_others(said) for said in self.state.messages)

    def take(self, event: events.Event) -> None:
        """Have the state and the countdown follow an event."""
        self.state.apply(event)
        self.version += not isinstance(event, _LIVE)
        match event:
            case events.ProgressMade():
                self.countdown.update(self.state)
            case events.TrialStarted():
                self.countdown.trial_began()
            case events.Paused(waiting):
                self.countdown.hold(waiting=waiting)
            case events.SessionFinished() | events.SessionFailed():
                self.paused = False

    @property
    def news(self) -> tuple[object, ...]:
        """It changes with all that is drawn at once; blocks and progress wait for the next second."""
        return self.version, self.state.activity


def events_of(past: PastSession) -> Iterator[Event]:
    """All that happened in a recorded session; one that was cut short ends as an interrupted one.

    One that was over, and was left while it went on, ends as it did before.
    """
    ends = [event for event in past.events if isinstance(event, SessionFinished | SessionFailed)]
    yield from past.events
    if not ends or ends[-1] is not past.events[-1]:
        yield ends[-1] if ends else SessionFinished(True, 0.0)


def keep_decision(past: PastSession, decided: Decided) -> Decided:
    """Keep a decision with a recorded session and return it. Raises UsageError while another process writes to it."""
    with closing(Journal(past.path, past.request)) as journal:
        journal.record(decided)
    return decided
