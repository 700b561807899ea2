"""The person's requests to a running session: skip a trial, pause, end early. Set and read from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

SKIPPED = "you skipped it"
ENDED = "you ended the session before its turn"


class Steering:
    """The person's requests. ``ending`` means: measure nothing more, and report what is known."""

    def __init__(self) -> None:
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.ending = False

    @property
    def why_skipped(self) -> str:
        """The reason for ending a trial before it measured anything."""
        return ENDED if self.ending else SKIPPED

    @property
    def paused(self) -> bool:
        """Whether the session waits before its next trial."""
        return not self._may_go_on.is_set()

    def pause(self) -> None:
        """Start no further trial until :meth:`go_on`."""
        self._may_go_on.clear()

    def go_on(self) -> None:
        """Start trials again."""
        self._may_go_on.set()

    def end(self) -> None:
        """End the session: no further trial is started."""
        self.ending = True
        self.go_on()

    def begin_anew(self) -> None:
        """Forget earlier requests: the person has asked for more to be measured."""
        self.ending = False
        self.go_on()

    def hold(self, tell: Callable[[bool], None]) -> None:
        """Wait until the session may go on, and ``tell`` when that begins and ends."""
        tell(True)
        self._may_go_on.wait()
        tell(False)
