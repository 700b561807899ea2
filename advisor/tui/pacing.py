"""The moments of drawing: at once after a quiet moment, and one drawing for a burst of events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A handle of a delayed call."""

    def stop(self) -> None:
        """Do not run it."""


class Pace:
    """Calls ``draw`` for news, at most once in ``interval_s``, and always after the last of them.

    ``after`` calls something some seconds later. Whatever draws for another reason says so with :meth:`drawn`.
    """

    def __init__(
        self, draw: Callable[[], None], after: Callable[[float, Callable[[], None]], Timer], interval_s: float
    ) -> None:
        self._draw = draw
        self._after = after
        self._interval_s = interval_s
        self._drawn_at = -math.inf
        self._next: Timer | None = None

    @property
    def due(self) -> bool:
        """Whether there is news that has not been drawn yet."""
        return self._next is not None

    def request_draw(self) -> None:
        """Draw now or, shortly after a draw, once the interval is over."""
        wait_s = self._drawn_at + self._interval_s - time.monotonic()
        if wait_s <= 0:
            self._draw()
        elif self._next is None:
            self._next = self._after(wait_s, self._draw)

    def drawn(self) -> None:
        """All that is known is on screen. The interval begins now: where drawing is slow, keys get their turn."""
        self._drawn_at = time.monotonic()
        if self._next:
            self._next.stop()
            self._next = None
