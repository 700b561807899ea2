"""Tells when a round of a script's loop is over, by Python's own tracing of the frame that the loop runs in."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from advisor.target.scripts.positions import Loop


class RoundTrace:
    """Calls ``ended`` in the loop's own frame after each round, from the one on that is at ``line``.

    ``ended`` is told whether the loop was left. What it raises is raised there: no generator that the loop reads and no
    function that it calls is left in the middle. An error of the script's own passes through.
    """

    def __init__(self, frame: FrameType, loop: Loop, line: int, ended: Callable[[bool], None]) -> None:
        self._frame = frame
        self._loop = loop
        self._ended = ended
        self._before: Any = None
        self._raises = False
        # A `while True` has no line of its own in a round; its first statement may be a loop, and come several times.
        self._has_left_first = not _holds(loop.body[0], line)

    def begin(self) -> None:
        """Look at each further line of the frame."""
        self._before = sys.gettrace()
        self._frame.f_trace = self._look
        sys.settrace(lambda *_: None)  # no function that is called is looked at

    def end(self) -> None:
        """Look no more."""
        self._frame.f_trace = None
        sys.settrace(self._before)

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        left = self._is_left(frame.f_lineno) if event == "line" else event == "return" and not self._raises
        self._raises = event == "exception"
        if left or (event == "line" and self._begins_round(frame.f_lineno)):
            self._has_left_first = False
            self._ended(left)
        return self._look

    def _is_left(self, line: int) -> bool:
        """Whether a line that the frame comes to is outside the loop, or in what follows its last round."""
        return not _holds(self._loop, line) or any(_holds(one, line) for one in self._loop.orelse)

    def _begins_round(self, line: int) -> bool:
        """Whether a line of the loop that the frame comes to is its head, or its first statement again."""
        first = self._loop.body[0]
        if line < first.lineno:
            return True
        begins_again = line == first.lineno and self._has_left_first
        self._has_left_first = self._has_left_first or not _holds(first, line)
        return begins_again and (isinstance(self._loop, ast.While) or line == self._loop.lineno)


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)
