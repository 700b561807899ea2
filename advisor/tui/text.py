"""Pieces of text that several views draw: bars, verdict marks, colours. Pure functions.

User text enters through ``Content(...)`` or rich's ``Text(...)``, both of which take it literally.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.experiment.state import SessionState
from advisor.records import Verdict
from advisor.report.figures import IN_TURN

DIM = "$foreground 60%"
BROAD = 100  # cells of a screen from which on two panels stand beside each other
# The colours of verdicts; of the others there is nothing to point out.
COLOURS: Mapping[Verdict, str] = {Verdict.FASTER: "$success", Verdict.SLOWER: "$error", Verdict.FAILED: "$warning"}

# Distinct on dark and on light grounds; a phase keeps its colour in every session. Others take the spare ones in turn.
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


def waiting_text(state: SessionState, waiting: str) -> str:
    """The placeholder for an unknown figure: ``waiting``, or that it will not be measured."""
    if state.failure:
        return "Not known: the session failed before this."
    return "Not known: the session ended before this." if state.finished else waiting


def shortened(text: str, width: int) -> str:
    """A text cut to a number of cells in its middle, since names often differ at their ends only."""
    if len(text) <= width or width < 1:
        return text[: max(0, width)]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def trial_name(name: str, width: int = 40) -> str:
    """A trial's name in so many cells. A list of settings is told by their number: always where it repeats others.

    Other details are cut at their end: ``stack with… compiled`` is the opposite of ``stack without x, not compiled``.
    """
    name = f"stack, {IN_TURN}" if name == "stack, confirmed" else name  # whether it is, is known once it has ended
    kind, colon, listed = name.partition(": ")
    if colon and (kind == "again" or (kind == "stack" and len(name) > width)):
        count, again = listed.count(": "), ", again" if kind == "again" else ""
        key, _, value = listed.rpartition(".")[2].partition(": ")
        name = f"{f'{key}={value}' if count == 1 and again else f'stack of {count}'}{again}"
    return f"{name[: width - 1]}…" if ", " in name and len(name) > width > 1 else shortened(name, width)


def trial_label(name: str, state: SessionState, width: int) -> str:
    """A trial's name, at most ``width`` cells; if it is too long, the recipe's if it has one candidate only."""
    candidate = state.candidates.get(name)
    if candidate is None:
        return trial_name(name, width)
    alone = sum(other.recipe == candidate.recipe for other in state.candidates.values()) == 1
    return shortened(candidate.recipe if alone and len(name) > width else name, width)
