"""A recorded session as the app's subject: its events are known already, and only decisions are added to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from advisor.experiment.control import Decision
from advisor.experiment.events import Decided, Event, SessionFailed, SessionFinished
from advisor.experiment.past.journal import Journal, PastSession
from advisor.records import Value


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session that is over."""

    past: PastSession

    @property
    def date_text(self) -> str:
        """The date of the measurement: ``22 Nov 2026 15:41``."""
        return date_text(self.past.started)

    def events(self) -> Iterator[Event]:
        """All that happened; a session that was cut short ends as an interrupted one."""
        yield from self.past.events
        if not any(isinstance(event, SessionFinished | SessionFailed) for event in self.past.events):
            yield SessionFinished(True, 0.0)

    def decide(self, recipe: str, decision: Decision | None, value: Value | None = None) -> Event:
        """Keep a decision with the session and return it as an event. Raises UsageError while another writes to it."""
        event = Decided(recipe, decision, value)
        with closing(Journal(self.past.path, self.past.request)) as journal:
            journal.record(event)
        return event


def date_text(moment: datetime) -> str:
    """Return a moment as a person writes it, to the minute."""
    return f"{moment.day} {moment:%b %Y %H:%M}"
