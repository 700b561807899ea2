"""The line above the footer in every view: the running trial, its time, and the time left."""

from __future__ import annotations

import time

from textual.content import Content
from textual.widgets import Static

from advisor.figures.formatting import format_seconds
from advisor.report.figures import STAGES
from advisor.tui.context import Context
from advisor.tui.text import DIM, shortened, trial_label, trial_name
from advisor.tui.widgets.texts import show_text

# How long a notice stays, in seconds; and the colours of those that are no news.
NOTICE_S = 6.0
_NOTICES = {"warning": "bold $warning", "error": "bold $error"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
# Fewer cells for the trial's name say nothing; it has these before the stack's figure has any.
_SHORT_NAME, _LEAST_NAME = 8, 16
# Cells for the state and the seconds of a trial: the right end must not change with each state.
_STATE = 40
_WIDE, _WIDEST_NAME, _METER = 100, 200, 12
# A trial that takes this many times what was expected is told apart from one that is on its way. Unitless.
_LATE = 1.5
# From here on seconds are told as minutes.
_MINUTES = 100


class StatusBar(Static):
    """One line of text, which is painted without laying out the screen.

    Left: the running trial, its state and its seconds, or a notice. Right: the time left. ``turns`` counts those of the
    spinner.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(id="status", markup=False)
        self.context = context
        self._notice, self._noticed_until, self.turns = Content(""), 0.0, 0

    def show_notice(self, text: str, severity: str) -> None:
        """Show a notice in place of what runs, for some seconds."""
        self._notice = Content.styled(" ".join(text.split()), _NOTICES.get(severity, "bold $accent"))
        self._noticed_until = time.monotonic() + NOTICE_S
        self.set_timer(NOTICE_S, self.show)
        self.show()

    def show(self) -> None:
        """Draw the present state."""
        context, width = self.context, self.content_size.width
        working = is_working(context)
        far = left_text(context, working=working, wide=width >= _WIDE)
        room = width - len(far) - 4
        if context.state.failure:
            sign = ("✗", "$error")
        elif context.state.paused:
            sign = ("‖", "$warning")
        else:
            sign = (_SPINNER[self.turns % len(_SPINNER)], "$accent") if working else ("●", "$success")
        told = self._notice if time.monotonic() < self._noticed_until else now_text(context, room)
        now = Content.assemble(sign, " ", told).truncate(max(1, room + 2), ellipsis=True)
        line = now.pad_right(max(0, width - now.cell_length - far.cell_length)) + far
        show_text(self, line, layout=False)

    def on_resize(self) -> None:
        self.show()


def is_working(context: Context) -> bool:
    """Whether something is being measured, or about to be."""
    state = context.state
    return bool(context.busy_with or state.running) or (state.finished is None and state.failure is None)


def now_text(context: Context, room: int) -> Content:
    """The running trial with its state and its seconds, ``room`` cells wide; the stage where nothing runs."""
    state = context.state
    if context.recorded:
        interrupted = state.finished is not None and state.finished.cancelled
        ended = ", failed" if state.failure else ", interrupted" if interrupted else ""
        return Content.styled(f"Recorded{ended}: perf-advisor --resume {context.session_id} goes on", "bold")
    if state.failure:
        return Content.styled("The session cannot go on", "$error")
    if state.paused:
        return Content.styled("Paused: space goes on, and the time left stands still", "bold $warning")
    if not state.running:
        return Content.styled(shortened(_stage(context), room), "bold")
    doing = Content("")
    if context.paused:
        doing = Content.assemble("  ", ("pauses after this trial", "$warning"))
    elif state.activity:
        doing = Content.assemble("  ", (state.activity, "$accent"))
    tail = doing + _seconds(context)
    if doing and len(tail) > room - _LEAST_NAME:
        tail = doing  # what it does comes before its seconds
    stage, left = _stage(context), room - len(tail)
    both = stage if state.running in stage else f"{stage}: {trial_name(state.running, _WIDEST_NAME)}"
    told = both if len(both) <= min(left, room - _STATE) else trial_label(state.running, state, max(_SHORT_NAME, left))
    return Content.assemble((told, "bold"), tail)


def _stage(context: Context) -> str:
    state = context.state
    if state.finished:
        return context.busy_with or "Done"
    if state.is_loading and not state.running:
        return "Loading the model"
    told = STAGES.get(state.stage, state.stage)
    return told[:1].upper() + told[1:]


def _seconds(context: Context) -> Content:
    spent_s, expected_s = int(context.clock() - context.trial_began_at), context.state.expected_s
    if expected_s is None:
        return Content.styled(f"  {spent_s} s", DIM)
    expected = f"{max(1, round(expected_s))} s" if expected_s < _MINUTES else format_seconds(expected_s)
    if spent_s > _LATE * expected_s + 1:
        return Content.styled(f"  {spent_s} s, expected {expected}", "$warning")
    return Content.styled(f"  {spent_s} of about {expected}", DIM)


def left_text(context: Context, *, working: bool, wide: bool) -> Content:
    """The session's time left; empty where nobody knows, or for one trial after the session."""
    state = context.state
    if not working or (state.finished is not None and not (state.running and state.left_s)):
        return Content("")
    drawn = round(state.progress * _METER)
    meter = Content.assemble(("━" * drawn, "$primary"), ("━" * (_METER - drawn), "$foreground 15%"))
    minutes, seconds = divmod(round(context.left_s), 60)
    return Content(" ").join([*([meter] if wide else []), Content.styled(f"{minutes}:{seconds:02d} left", "bold")])
