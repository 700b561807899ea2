"""Events as lines of JSON on standard output, for programs that follow a session; the report is the last of them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, TextIO

import msgspec

from advisor.experiment.events import Event


class EventStream:
    """Writes one JSON object a line: ``event`` is its kind, ``at`` seconds since 1970, ``data`` what it holds.

    What is not a number (a loss that diverged) is null. A reader that left does not stop the session.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def handle(self, event: Event) -> None:
        """Write an event. Called from the session's thread."""
        self._write(type(event).__name__, event)

    def report(self, text: str) -> None:
        """Write the whole report, which is JSON already, as the last line."""
        self._write("Report", msgspec.Raw(msgspec.json.format(text, indent=-1).encode()))

    def _write(self, kind: str, data: Any) -> None:
        line = msgspec.json.encode({"event": kind, "at": round(time.time(), 3), "data": data}).decode()
        with self._lock, suppress(OSError, ValueError):
            self._file.write(f"{line}\n")
            self._file.flush()
