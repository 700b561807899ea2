"""The plan of a session as a line with marks: what is done, what runs, what comes. Pure functions."""

from __future__ import annotations

from datetime import datetime

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_seconds
from advisor.tui.text import DIM

_STEPS = ("load", "baseline", "leap", "search", "confirm")
_STEP_OF = {
    "starting": "load",
    "baseline": "baseline",
    "leap": "leap",
    "instruments": "search",
    "search": "search",
    "alone": "search",
    "confirmation": "confirm",
}
_TEACHES = {
    "load": "Your model is loaded in a process of its own; nothing of yours is changed.",
    "baseline": "Your present settings are timed first: every speed-up is against this baseline.",
    "leap": "The settings that usually win are tried together first, since effects do not add up.",
    "search": "Settings are added, left out and swapped, the best expected gain for its time first.",
    "confirm": "The best stack and the baseline take turns, so that drift cancels.",
}


def plan_text(state: SessionState, budget_s: float, ends: datetime | None = None) -> Content:
    """Return the steps with their marks, the expected end, and a sentence about the present one.

    Until an end can be expected, the budget stands in its place. Empty once the session is over.
    """
    if state.finished or state.failure:
        return Content("")
    now = step_now(state)
    place = _STEPS.index(now)
    marks = [
        Content.assemble((f"{step} ✓", "$success"))
        if position < place
        else Content.assemble((f"{step} ▶", "bold $accent"))
        if position == place
        else Content.styled(f"{step} ·", DIM)
        for position, step in enumerate(_STEPS)
    ]
    end = f"ends about {ends:%H:%M}" if ends and not state.held else f"at most {format_seconds(budget_s)}"
    line = Content("  ").join(marks) + Content.styled(f"   {end}", DIM)
    return Content("\n").join([line, Content.styled(_TEACHES[now], DIM)])


def step_now(state: SessionState) -> str:
    """Return the step of the plan that a session is at: loading lasts until the workload is known."""
    step = _STEP_OF.get(state.stage, "confirm")
    return "load" if step == "baseline" and state.is_loading else step
