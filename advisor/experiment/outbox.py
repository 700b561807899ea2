"""What a session tells: each event goes to the journal first, then to the user interface."""

from __future__ import annotations

from collections.abc import Callable

from advisor.errors import AdvisorError, ExitCode
from advisor.experiment.events import Event, Said, SessionFailed, SessionFinished, TrialEnded, printable_event
from advisor.experiment.past.journal import Journal
from advisor.source.prints import SourceWatch


class Outbox:
    """Journals and posts the events of a session; ``post`` only posts. ``exit_code`` is what they come to.

    ``keeps_complete``: the journal holds a complete session, whose record a failure of this one must not spoil.
    ``watch`` notices when the user's files differ from those that the baseline measured.
    """

    def __init__(self, post: Callable[[Event], None], journal: Journal) -> None:
        self.post = post
        self.exit_code = ExitCode.OK
        self.keeps_complete = False
        self.watch = SourceWatch({})
        self._journal = journal
        self._warned: set[str] = set()

    @property
    def session_id(self) -> str:
        """The session's id, which is the journal's."""
        return self._journal.session_id

    def emit(self, event: Event) -> None:
        """Journal and post an event."""
        if isinstance(event, TrialEnded):
            self._notice_changed_sources()
        event = printable_event(event)
        problem = "" if self._spoils_the_record(event) else self._journal.record(event)
        self.post(event)
        if problem:
            self.warn(f"the journal cannot be written any more: {problem}; the session goes on without it")

    def warn(self, text: str, *, once: str = "") -> None:
        """Tell the person something that they should act on, or know when they read the figures."""
        if once and once in self._warned:
            return
        self._warned.add(once)
        self.emit(Said(text, "warning"))

    def fail(self, error: AdvisorError) -> None:
        """Tell that the session failed."""
        self.exit_code = error.exit_code
        self.emit(SessionFailed(error.message, error.hint, error.details, int(error.exit_code)))

    def _spoils_the_record(self, event: Event) -> bool:
        """Whether an event would turn the record of a session that was complete into one that was not."""
        if isinstance(event, SessionFinished):
            return self.keeps_complete and (event.cancelled or self.exit_code is not ExitCode.OK)
        return self.keeps_complete and isinstance(event, SessionFailed)

    def _notice_changed_sources(self) -> None:
        """Say once of each file of the user's that another one measures from now on than the baseline did."""
        for path in self.watch.changed():
            self.warn(
                f"{path} has changed since the baseline was measured, so later trials may run other code: "
                "end this session and start another"
            )
