"""Charts as figures: axes, marks, lines and bars in units of their own. A renderer gives them a form.

Nothing here knows what a session is. Places are shares of 0 to 1, from the left and from the bottom.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

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
# A line is told from a label by so many places on it.
_PLACES = 60
# A label that starts or ends this near a mark on its line is taken for that mark's. Characters.
_OWN = 3.5


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

    def cuts(self, value: float) -> bool:
        """Whether a value lies outside."""
        return not self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with its sign, one character, and its label. ``value_text`` is its value where the axis cuts it off."""

    x: float
    y: float
    sign: str
    tone: Tone
    label: str = ""
    value_text: str = ""


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


# --- where marks and labels go ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placed:
    """A mark with its place, and the left end of its label in the same units; None where there is no room for it."""

    mark: Mark
    x: float
    y: float
    text: str
    at: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Canvas:
    """The room of a plot and the size of a character, in a renderer's units; from the left, and from the bottom."""

    width: float
    height: float
    character: float = 1.0
    line: float = 1.0


def placed(plot: Plot, canvas: Canvas) -> list[Placed]:
    """The marks where they are drawn, each with a place for its label that covers no mark and no other label.

    The most important marks, which are the last ones, choose first; a label on a line is better than none, and none is
    better than one that seems to be another mark's.
    """
    spots = [_spot(plot, mark.x, mark.y, canvas) for mark in plot.marks]
    taken = [_around(x, y, canvas) for x, y in spots]
    taken += [box for _, box in limit_labels(plot, canvas)]
    drawn = [box for line in plot.lines for box in _along(plot, line, canvas)]
    found: list[Placed] = []
    for place, mark in reversed(list(enumerate(plot.marks))):
        x, y = spots[place]
        others = [_beside(*spot, canvas) for spot in (*spots[:place], *spots[place + 1 :])]
        is_cut = plot.x.cuts(mark.x) or plot.y.cuts(mark.y)
        text = " ".join(filter(None, (mark.label, mark.value_text if is_cut else "")))
        width = len(text) * canvas.character
        free = (_room_beside((x, y), width, canvas, boxes, others) for boxes in ([*taken, *drawn], taken))
        at = next(filter(None, free), None) if not _is_covered(spots[place], spots[place + 1 :], canvas) else None
        at = at if text else None
        if at is not None:
            taken.append((*at, at[0] + width, at[1] + canvas.line))
        found.append(Placed(mark, x, y, text, at))
    return found[::-1]


_Box = tuple[float, float, float, float]


def _spot(plot: Plot, x: float, y: float, canvas: Canvas) -> tuple[float, float]:
    """The middle of a mark; all of it is on the canvas."""
    across, up = plot.x.place(x) * canvas.width, plot.y.place(y) * canvas.height
    right, top = canvas.width - canvas.character / 2, canvas.height - canvas.line / 2
    return min(right, max(canvas.character / 2, across)), min(top, max(canvas.line / 2, up))


def limit_labels(plot: Plot, canvas: Canvas) -> list[tuple[Line, _Box]]:
    """The limits, each with the room of its label: at the right end of its line, and on no other label."""
    limits = [line for line in plot.lines if line.tone is Tone.LIMIT]
    aside = (1 + max((len(line.label) for line in limits), default=0)) * canvas.character
    taken: list[_Box] = []
    for line in limits:
        places = _beside_limit(plot, line, canvas)
        boxes = [(left - by, low, right - by, high) for by in (0.0, aside) for left, low, right, high in places]
        free = (box for box in boxes if not any(_overlap(box, other, 0.0) for other in taken))
        taken.append(next(free, boxes[0]))
    return list(zip(limits, taken, strict=True))


def _beside_limit(plot: Plot, line: Line, canvas: Canvas) -> list[_Box]:
    """The places of a limit's label, the best first: above the right end of its line, or below it at the very top."""
    across, up = (plot.x.place(line.points[-1][0]) * canvas.width, plot.y.place(line.points[-1][1]) * canvas.height)
    width = len(line.label) * canvas.character
    levels = (up, up - 2 * canvas.line) if up + 2 * canvas.line <= canvas.height else (up - 2 * canvas.line, up)
    inside = [level for level in levels if 0 <= level <= canvas.height - canvas.line] or [levels[0]]
    return [(across - width, level, across, level + canvas.line) for level in inside]


def _along(plot: Plot, line: Line, canvas: Canvas) -> Iterator[_Box]:
    spots = [(plot.x.place(x) * canvas.width, plot.y.place(y) * canvas.height) for x, y in line.points]
    for (x, y), (other_x, other_y) in pairwise(spots):
        for share in (place / _PLACES for place in range(_PLACES + 1)):
            across, up = x + share * (other_x - x), y + share * (other_y - y)
            yield across, up, across, up


def _around(x: float, y: float, canvas: Canvas) -> _Box:
    return x - canvas.character / 2, y - canvas.line / 2, x + canvas.character / 2, y + canvas.line / 2


def _is_covered(spot: tuple[float, float], later: Iterable[tuple[float, float]], canvas: Canvas) -> bool:
    """Whether a mark that is drawn later hides one; its label would seem to be that one's."""
    return any(abs(spot[0] - x) < canvas.character / 2 and abs(spot[1] - y) < canvas.line / 2 for x, y in later)


def _beside(x: float, y: float, canvas: Canvas) -> _Box:
    """A mark with the room on its line in which a label is taken for its own."""
    return x - _OWN * canvas.character, y - canvas.line / 2, x + _OWN * canvas.character, y + canvas.line / 2


def _room_beside(
    spot: tuple[float, float], width: float, canvas: Canvas, taken: list[_Box], others: list[_Box]
) -> tuple[float, float] | None:
    """The lower left corner of a label: right of its mark, left of it, above or below; None where all is taken.

    Above and below it stands beside none of the ``others``, whose label it would seem to be.
    """
    (x, y), beside = spot, 1.5 * canvas.character
    level = y - canvas.line / 2
    right, left = x + beside, x - beside - width
    middle = min(max(0.0, x - width / 2), canvas.width - width)
    for at in (
        (right, level),
        (left, level),
        (middle, level + canvas.line),
        (middle, level - canvas.line),
        (right, level + canvas.line),
        (right, level - canvas.line),
        (left, level + canvas.line),
        (left, level - canvas.line),
    ):
        box = (*at, at[0] + width, at[1] + canvas.line)
        inside = at[0] >= 0 and at[1] >= -1e-9 and box[2] <= canvas.width and box[3] <= canvas.height + 1e-9
        in_the_way = taken if at[1] == level else [*taken, *others]
        if inside and not any(_overlap(box, other, canvas.character / 2) for other in in_the_way):
            return at
    return None


def _overlap(one: _Box, other: _Box, gap: float) -> bool:
    """Whether two boxes cover each other, or stand closer than ``gap`` on one line."""
    return (
        one[0] < other[2] + gap - 1e-9
        and other[0] < one[2] + gap - 1e-9
        and one[1] < other[3] - 1e-9
        and other[1] < one[3] - 1e-9
    )
