"""Messages inside the app: what threads post to it, and what views ask of it."""

from __future__ import annotations

from pathlib import Path

from textual.message import Message

from advisor.experiment.control import Decision
from advisor.records import Value


class EventsWaiting(Message):
    """The session posted events; they wait in the app's inbox. Several of these are handled as one."""

    def can_replace(self, message: Message) -> bool:
        """A later message of this kind says the same."""
        return isinstance(message, EventsWaiting)


class Decided(Message):
    """The person accepted or rejected a recommendation, or took that back (None); or accepted one value only."""

    def __init__(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        super().__init__()
        self.recipe_id = recipe_id
        self.decision = decision
        self.value = value


class RetryWanted(Message):
    """The person wants a trial to run again."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class ExportSaved(Message):
    """A file of the export view has been written."""

    def __init__(self, format_id: str, path: Path) -> None:
        super().__init__()
        self.format_id = format_id
        self.path = path


class TraceSaved(Message):
    """The trace of the profiled steps has been copied to ``path``; without one, ``problem`` says why it was not."""

    def __init__(self, path: Path | None, problem: str = "") -> None:
        super().__init__()
        self.path = path
        self.problem = problem
