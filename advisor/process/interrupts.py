"""Signals that end perf-advisor: SIGINT, SIGTERM and SIGHUP. A handler only notes them, so that results get reported.

Imports almost nothing, since it is needed before the other modules of perf-advisor are imported.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# One Ctrl+C can arrive twice: from the terminal and from a parent that passes it on. People also repeat it. Seconds.
SAME_SIGNAL_S = 1.0
# Before a session obeys signals, a second signal ends the program only if it comes this long after the first. Seconds.
_BEGINS_WITHIN_S = 5.0
# After two signals, a third one this much later ends the process even while it writes reports. Seconds.
_WRITES_WITHIN_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The requests made by signals: ``asked`` after one (end), ``urgent`` after a second (leave at once).

    Outside :meth:`obeyed_by` the second signal raises KeyboardInterrupt; after :meth:`at_once` the first one does.
    """

    _asked_at: float | None = None
    _urgent_at: float | None = None
    _at_once = False
    _tell: Callable[[], None] | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._asked_at is not None

    @property
    def urgent(self) -> bool:
        """Whether a second signal has come at least a moment after the first."""
        return self._urgent_at is not None

    @contextmanager
    def handled(self, *, for_good: bool = False) -> Iterator[None]:
        """Handle the signals in this context; with ``for_good``, ignore them afterwards until the process ends."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers, and it gets the signals
            return
        if signal.getsignal(signal.SIGINT) != self._take:  # unless nested in such a context
            self._asked_at = self._urgent_at = None
            self._at_once = False
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in previous.items():
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_IGN if for_good else handler or signal.SIG_DFL)

    @contextmanager
    def obeyed_by(self, tell: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside this context a session obeys signals: it reads ``asked`` and ``urgent``, or ``tell`` reports each."""
        self._tell = tell
        if self.asked:
            tell()
        try:
            yield
        finally:
            self._tell = None

    def at_once(self) -> None:
        """Make each further signal raise KeyboardInterrupt at once. If one has come already, raise it here."""
        self._at_once = True
        if self.asked:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif self._urgent_at is not None and now - self._urgent_at > _WRITES_WITHIN_S:
            os._exit(130)  # the value of errors.ExitCode
        elif self._urgent_at is None and now - self._asked_at > SAME_SIGNAL_S:
            self._urgent_at = now
        if self._tell is not None:
            self._tell()
        elif self._at_once or now - self._asked_at > _BEGINS_WITHIN_S:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()
