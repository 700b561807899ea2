"""Clocks that a step reads, found by their places, and put forward in a try."""

import time
import types
import typing
from collections.abc import Iterable

from advisor.step.places import Place, put_at, value_at

CLOCK_NAMES = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
OF_SECONDS = [getattr(time, name) for name in CLOCK_NAMES]
OF_NANOSECONDS = [getattr(time, f"{name}_ns") for name in CLOCK_NAMES]
DATES = [time.localtime, time.gmtime, time.ctime, time.strftime]
# Methods of the classes of ``datetime`` that tell the time.
NOW = frozenset({"now", "utcnow", "today"})
CLOCK = "the step reads a clock, and a graph would repeat what it said"


def is_clock(value: typing.Any) -> bool:
    """Whether a value is one of Python's functions that tell the time."""
    return type(value) is types.BuiltinFunctionType and value in (*OF_SECONDS, *OF_NANOSECONDS, *DATES)


class Clocks:
    """Watches the clocks in some places, which are put forward by some seconds in this context.

    ``asked`` are those that were read.
    """

    def __init__(self, places: Iterable[Place], forward_s: int = 0) -> None:
        self.forward_s = forward_s
        self.asked: list[typing.Any] = []
        self._clocks = [(place, value_at(*place)) for place in places]

    def __enter__(self) -> "Clocks":
        for place, clock in self._clocks:
            put_at(*place, WatchedClock(self, clock))
        return self

    def __exit__(self, *_: object) -> None:
        for place, clock in self._clocks:
            put_at(*place, clock)


class WatchedClock:
    """A clock in place of another, put forward; each reading takes it a second further. Dates stay as they are."""

    def __init__(self, clocks: Clocks, clock: typing.Any) -> None:
        self.clocks = clocks
        self.clock = clock

    def __call__(self, *given: typing.Any) -> typing.Any:
        """The time."""
        self.clocks.asked.append(self.clock)
        said = self.clock(*given)
        if self.clock in DATES or not self.clocks.forward_s:
            return said
        forward_s = self.clocks.forward_s + len(self.clocks.asked)
        return said + forward_s * (10**9 if self.clock in OF_NANOSECONDS else 1)
