"""The phases of a step as stacked bars, each a line of text. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from advisor.figures.formatting import format_percent
from advisor.report.document import Part, Stacked
from advisor.tui.text import PHASE_COLOURS, SPARE_COLOURS

_NAME = 7  # cells before a bar, where there are several


def cells(values: list[float], width: int) -> list[int]:
    """Share ``width`` cells in proportion; each value above zero gets at least one."""
    total = sum(values)
    if total <= 0 or width <= 0:
        return [0 for _ in values]
    shares = [max(1, round(value / total * width)) if value > 0 else 0 for value in values]
    while sum(shares) != width:
        widest = max(range(len(shares)), key=shares.__getitem__)
        step = 1 if sum(shares) < width else -1
        if shares[widest] + step < 1:
            break
        shares[widest] += step
    return shares


def bars(phases: Iterable[Stacked], width: int) -> Content:
    """The bars under one another with their names, each on a scale of its own: the step times are in the headline."""
    named = ((Content.styled(f"{bar.name:<{_NAME}}", "$secondary"), bar) for bar in phases)
    return Content("\n").join(name + _pieces(bar, max(1, width - _NAME)) for name, bar in named)


def line_of(bar: Stacked, kind: str, width: int) -> Content:
    """The parts of a step in one line, behind the ``kind`` of the step: what limits it."""
    head = Content.assemble((f"{kind} ", "bold $accent")) if kind else Content("")
    return head + _pieces(bar, max(1, width - head.cell_length))


def _pieces(bar: Stacked, width: int) -> Content:
    """The parts in their colours, each with as much of its name and share as there is room for."""
    sizes, drawn = [part.size for part in bar.parts], list[tuple[str, str]]()
    for place, (part, count) in enumerate(zip(bar.parts, cells(sizes, width), strict=True)):
        colour = PHASE_COLOURS.get(part.name, SPARE_COLOURS[place % len(SPARE_COLOURS)])
        drawn.append((_label(part, sum(sizes), count).center(count), f"#10141a on {colour}"))
    return Content.assemble(*drawn)


def _label(part: Part, total: float, count: int) -> str:
    name = "to device" if part.name == "host-to-device" else part.name
    labels = (f"{name} {format_percent(part.size / total if total else None)}", name, part.initial)
    return next((label for label in labels if len(label) <= count), "")
