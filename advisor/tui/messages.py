"""Messages inside the app: those that threads post, and requests of views."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual.message import Message

from advisor.experiment.control import Decision
from advisor.records import Value


class EventsWaiting(Message):
    """The session posted events; they wait in the app's inbox. Several of these are handled as one."""

    def can_replace(self, message: Message) -> bool:
        """A later message of this kind says the same."""
        return isinstance(message, EventsWaiting)


@dataclass
class Decided(Message):
    """The person accepted or rejected a recommendation, or took that back (None); or accepted one value only."""

    recipe_id: str
    decision: Decision | None
    value: Value | None = None


class UndoWanted(Message):
    """The person wants the last decision taken back."""


@dataclass
class RetryWanted(Message):
    """The person wants a trial to run again."""

    name: str


@dataclass
class ExportSaved(Message):
    """A file of the export view has been written."""

    format_id: str
    path: Path
