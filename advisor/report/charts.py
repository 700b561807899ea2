"""Charts as figures: axes, marks, lines and bars in units of their own. A renderer gives them a form.

Nothing here knows what a session is. Places are shares of 0 to 1, from the left and from the bottom.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

# An end of an axis that is farther away than this many times the extent of all other values is cut off. Unitless.
_FAR = 3.0
# Room beside the values, as a share of the axis.
_MARGIN = 0.06
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
# The ticks of a decade, by the ratio that an axis spans at least.
_FACTORS = (
    (1e3, (1.0,)),
    (10.0, (1.0, 2.0, 5.0)),
    (1.5, (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)),
    (0.0, tuple(1.0 + count / 20 for count in range(180))),
)
# On a logarithmic axis. Times are in milliseconds, and rates in operations a second.
_SMALLEST, _LARGEST = 1e-18, 1e24


class Tone(StrEnum):
    """The role of a mark or a line. Each role has its own sign, so that colour is not needed to tell them apart."""

    BASELINE = "baseline"
    STACK = "stack"
    FRONT = "front"
    CHOSEN = "chosen"
    FASTER = "faster"
    SLOWER = "slower"
    OTHER = "other"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from ``low`` to ``high``, with the values that are named on it."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False

    def place(self, value: float) -> float:
        """The position of a value on the axis, 0 to 1; values outside are at the nearer end."""
        low, value, high = (math.log(max(v, 1e-30)) if self.log else v for v in (self.low, value, self.high))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with its sign, one character, and its label in the legend, if it has one."""

    x: float
    y: float
    sign: str
    tone: Tone
    label: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points that are joined."""

    points: tuple[tuple[float, float], ...]
    tone: Tone
    label: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Marks and lines over two axes; later marks are the more important ones. ``words`` say what it shows."""

    title: str
    words: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def legend(self) -> tuple[tuple[str, Tone, str], ...]:
        """The signs with their meaning, the most important first: no label can cover another there."""
        entries = [(mark.sign, mark.tone, mark.label) for mark in reversed(self.marks)]
        entries += [("─", line.tone, line.label) for line in self.lines]
        return tuple(dict.fromkeys(entry for entry in entries if entry[2]))


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from ``start`` to ``end``. ``text`` is its figure, ``details`` what is told beside it where there is room.

    One that ``is_mark`` stands for no length: the baseline, or a setting that makes no difference.
    """

    name: str
    start: float
    end: float
    text: str
    tone: Tone
    details: tuple[str, ...] = ()
    is_mark: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars under one another on one axis."""

    title: str
    words: str
    axis: Axis
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stacked bar, with the initial that stands in it."""

    name: str
    initial: str
    size: float
    text: str


@dataclass(frozen=True, slots=True)
class Stacked:
    """One stacked bar: its parts in their order, and their sum."""

    name: str
    text: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> float:
        """The length of the whole bar."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class StackedBars:
    """Stacked bars on one scale."""

    title: str
    words: str
    bars: tuple[Stacked, ...]


Chart = Plot | Bars | StackedBars


# --- axes -----------------------------------------------------------------------------------------------------


def linear_axis(title: str, values: Iterable[float], unit: str = "") -> Axis:
    """An axis with four to eight round ticks that encloses the values with some room; see ``log_axis`` for limits."""
    known = [min(max(value, -_LARGEST), _LARGEST) for value in values] or [0.0, 1.0]
    low, high = min(known), max(known)
    margin = (high - low) * _MARGIN or max(abs(high), 1.0) * 0.1
    step = _round_step((high - low + 2 * margin) / 5)
    first, last = math.floor(max(0.0, low - margin) / step), math.ceil((high + margin) / step)
    ticks = [round(count * step, 9) for count in range(first, last + 1)]
    return Axis(title, ticks[0], ticks[-1], tuple((tick, f"{tick:g}{unit}") for tick in ticks))


def log_axis(
    title: str, values: Iterable[float], name: Callable[[float], str], ticks: Sequence[float] | None = None
) -> Axis:
    """A logarithmic axis around positive values; its ticks are round, closer on a short axis, unless they are given.

    Values beyond any measured one, which a damaged journal may hold, count as the limit.
    """
    known = [min(max(value, _SMALLEST), _LARGEST) for value in values if value > 0] or [1.0]
    room = (max(known) / min(known)) ** _MARGIN * 1.02
    low, high = min(known) / room, max(known) * room
    shown = list(_decades(low, high)) if ticks is None else [tick for tick in ticks if low <= tick <= high]
    return Axis(title, low, high, tuple((tick, name(tick)) for tick in shown), log=True)


def _decades(low: float, high: float) -> Iterator[float]:
    factors = next(factors for least, factors in _FACTORS if high / low > least)
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (round(factor * 10.0**power, 9) for factor in factors if low <= factor * 10.0**power <= high)


def without_outliers(values: Sequence[float], kept: Sequence[float]) -> list[float]:
    """The values that an axis is made for: those far beyond all others are left out, unless they are ``kept``."""
    inside = sorted(values)
    while len(inside) > 3 and inside[-1] not in kept and inside[-1] - inside[-2] > _FAR * (inside[-2] - inside[0]):
        inside.pop()
    while len(inside) > 3 and inside[0] not in kept and inside[1] - inside[0] > _FAR * (inside[-1] - inside[1]):
        inside.pop(0)
    return inside


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is at least ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in _ROUND if power * factor >= rough * 0.999)
