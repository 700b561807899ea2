"""The end of a growing log file, as plain text."""

from contextlib import suppress
from pathlib import Path

from rich.text import Text
from textual.widgets import Log

from advisor.figures.formatting import printable
from advisor.process.logs import read_end

_TAIL_BYTES = 64 * 1024
_MOST_LINES = 400


def read_tail(path: str) -> str:
    """The last lines of a log, without escape sequences; a sentence when there is nothing to show."""
    if not path:
        return "No output."
    try:
        text = read_end(path, _TAIL_BYTES)
    except FileNotFoundError:  # its process has not begun, or the session was measured elsewhere
        return f"There is no log in {path}."
    except OSError as error:
        return f"The log cannot be read: {error.strerror or error}"
    # As a terminal would show it in the end: carriage returns overwrite their line, colours are removed.
    lines = (line.rstrip("\r") for line in text.split("\n")[-_MOST_LINES:])
    return printable(Text.from_ansi("\n".join(lines)).plain).strip("\n") or "No output."


class LogTail(Log):
    """Shows the tail of one file at a time; :meth:`poll` follows it while it grows."""

    def __init__(self) -> None:
        super().__init__(id="log", classes="panel", max_lines=_MOST_LINES, auto_scroll=True)
        self.border_title = "Log"
        self._path = ""
        self._stamp: object = None

    def on_show(self) -> None:
        self.poll()  # a log that was hidden is not read, so it shows what was written in between at once

    def follow(self, path: str) -> None:
        """Show this file from now on."""
        self._path = path
        self.poll()

    def poll(self) -> None:
        """Read the file again if it changed; not while the log, or the view that it is in, is hidden."""
        if not self.is_attached or not all(node.display for node in self.ancestors_with_self if node is not self.app):
            return
        stamp: object = (self._path, None)
        with suppress(OSError):
            status = Path(self._path).stat()
            stamp = (self._path, status.st_size, status.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp = stamp
            self.clear()
            self.write(read_tail(self._path))
            self.call_after_refresh(self.scroll_end, animate=False)  # once it has as many rows as its text needs
