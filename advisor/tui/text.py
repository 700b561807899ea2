"""Pure functions for texts that several views draw: names of trials, the phases of a step as bars, colours.

User text enters through ``Content(...)`` or rich's ``Text(...)``. Both take it literally, not as markup.
"""

import re
from collections.abc import Iterable, Mapping

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent
from advisor.records import Verdict
from advisor.report.document import Stacked

DIM = "$dim"
BROAD = 100  # on a screen of at least so many cells, two panels stand side by side
# The colours of verdicts. Verdicts without a colour need no attention.
COLOURS: Mapping[Verdict, str] = {Verdict.FASTER: "$success", Verdict.SLOWER: "$error", Verdict.FAILED: "$warning"}

LISTED = ("combination: ", "again: ")  # a trial whose name begins so lists its settings in the name
_LIST_ENTRY = re.compile(r"(\w+): ([^,:]+)(?:, |$)")

# Colours that differ on dark and on light grounds. Phases without a colour here take the spare ones in turn.
PHASE_COLOURS = {
    "data wait": "#e5a13a",
    "host-to-device": "#c678dd",
    "forward": "#4c9bf5",
    "loss": "#45c4c0",
    "backward": "#3fb37f",
    "optimizer": "#e0637c",
    "zero grad": "#7fb83d",
}
SPARE_COLOURS = ("#8f7cf0", "#d98c5f", "#7fb83d", "#c7698f")
_BAR_NAME = 7  # cells for the name before each of several bars


def waiting_text(state: SessionState, waiting: str) -> str:
    """The placeholder for an unknown figure: ``waiting``, or a sentence that it will not be measured."""
    over = "failed" if state.failure else "ended" if state.finished else ""
    return f"Not known: the session {over} before this." if over else waiting


def trial_name(name: str, width: int = 40, first: str = "") -> str:
    """Return a trial's name in at most ``width`` cells. A long list of settings becomes their number, with the changes
    against the settings in the name ``first``."""
    told = name
    if name.startswith(LISTED) and (len(told) > width or name.startswith("again")):
        again = ", again" if name.startswith("again") else ""
        lists = [_LIST_ENTRY.findall(one) for one in (name, first)]
        settings, others = ([f"{key}={value}".removesuffix("=true") for key, value in entries] for entries in lists)
        changes = [f"with {one}" for one in settings if others and one not in others]
        changes += [f"without {value.replace('true', key)}" for key, value in lists[1] if key not in dict(lists[0])]
        short = ", ".join([f"combination of {len(settings)}", *changes])
        told = f"{settings[0] if len(settings) == 1 else short}{again}"
    told = told if len(told) <= width else re.sub("^combination (of )?", "", told)
    return told if len(told) <= width else f"{told[: width - 1]}…"


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
    """Draw the bars under one another with their names. All have the same width; the headline has the step times."""
    named = ((Content.styled(f"{bar.name:<{_BAR_NAME}}", "$secondary"), bar) for bar in phases)
    return Content("\n").join(name + _pieces(bar, max(1, width - _BAR_NAME)) for name, bar in named)


def line_of(bar: Stacked, kind: str, width: int) -> Content:
    """Draw the parts of a step in one line, after the ``kind`` of the step, which names the part that limits it."""
    head = Content.assemble((f"{kind} ", "bold $accent")) if kind else Content("")
    return head + _pieces(bar, max(1, width - head.cell_length))


def _pieces(bar: Stacked, width: int) -> Content:
    """Draw the parts in their colours, each with its name and share as far as they fit."""
    sizes, drawn = [part.size for part in bar.parts], list[tuple[str, str]]()
    for place, (part, count) in enumerate(zip(bar.parts, cells(sizes, width), strict=True)):
        colour = PHASE_COLOURS.get(part.name, SPARE_COLOURS[place % len(SPARE_COLOURS)])
        name, share = "to device" if part.name == "host-to-device" else part.name, part.size / (sum(sizes) or 1.0)
        labels = (f"{name} {format_percent(share)}", name, name[:1].upper())
        label = next((label for label in labels if len(label) <= count), "")
        drawn.append((label.center(count), f"#10141a on {colour}"))
    return Content.assemble(*drawn)
