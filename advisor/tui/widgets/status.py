"""The line above the footer: what is going on now, how far it is, and the best stack so far."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from advisor.experiment.state import SessionState
from advisor.export.figures import MEASURED_ONCE
from advisor.formatting import format_left, format_percent
from advisor.tui.context import Context
from advisor.tui.countdown import Countdown
from advisor.tui.text import DIM, by_objective, meter
from advisor.tui.widgets.changes import show_text

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
COUNT_INTERVAL_S = 1.0
STAGES = {
    "starting": "Starting",
    "baseline": "Measuring the baseline",
    "leap": "Measuring the usual stack",
    "instruments": "Measuring noise and the profile",
    "search": "Improving the stack",
    "confirmation": "Confirming the stack",
    "alone": "Measuring settings alone",
    "done": "Done",
}


class StatusBar(Horizontal):
    """Left: the stage and the running trial. Right: progress, time left, the stack's speed-up."""

    def __init__(self) -> None:
        super().__init__(id="status")
        self._frame = 0
        self._working = False
        self._left = Content("")
        self._sign = ("●", "$success")
        self._timer: Timer | None = None
        self._drawn: Context | None = None

    def compose(self) -> ComposeResult:
        """The two halves."""
        yield Static(id="status-now")
        yield Static(id="status-far")

    def on_mount(self) -> None:
        """Turn the spinner, unless animations are off, and count down the time left."""
        if self.app.animation_level != "none":
            self._timer = self.set_interval(0.1, self._turn)
        self.set_interval(COUNT_INTERVAL_S, self._count_down)

    def show(self, context: Context) -> None:
        """Draw the present state."""
        self._drawn, state = context, context.state
        self._working = is_working(context)
        self._left = now_text(context)
        self._sign = ("✗", "$error") if state.failure else ("●", "$success")
        wide = self.size.width >= 100
        far = far_text(state, working=self._working, wide=wide, countdown=context.countdown)
        show_text(self.query_one("#status-far", Static), far)
        self._draw()

    def on_resize(self) -> None:
        """Say as much as there is room for now."""
        if self._drawn:
            self.show(self._drawn)

    def _count_down(self) -> None:
        if self._drawn and self._working:
            self.show(self._drawn)

    def _turn(self) -> None:
        if self._working:
            self._frame += 1
            self._draw()

    def _draw(self) -> None:
        spinning = (_SPINNER[self._frame % len(_SPINNER)], "$accent")
        now = Content.assemble(spinning if self._working else self._sign, " ", self._left)
        show_text(self.query_one("#status-now", Static), now, layout=False)  # as wide as the rest of the line


def is_working(context: Context) -> bool:
    """Whether something is being measured, or about to be."""
    state = context.state
    if context.busy_with or state.running:
        return True
    return state.finished is None and state.failure is None


def now_text(context: Context) -> Content:
    """The stage, and the running trial with what it is doing."""
    state = context.state
    if state.failure:
        return Content.styled("The session cannot go on", "$error")
    stage = "Done" if state.finished else STAGES.get(state.stage, state.stage.capitalize())
    if state.finished and context.busy_with:
        stage = context.busy_with
    parts = [Content.styled(stage, "bold")]
    if state.running and state.running != state.stage and state.running not in stage:
        parts.append(Content(state.running))
    if state.activity:
        parts.append(Content.styled(state.activity, DIM))
    return Content("  ").join(parts)


def far_text(state: SessionState, *, working: bool, wide: bool, countdown: Countdown | None = None) -> Content:
    """Progress with the time left while it lasts, and the best stack so far."""
    parts: list[Content] = []
    if working and (state.finished is None or (state.running and state.left_s)):  # one trial alone has no plan
        share, left_s = countdown.now(state) if countdown else (state.progress, state.left_s)
        if wide:
            parts.append(meter(share, 14, "$primary"))
        parts.append(Content(format_percent(share)))
        if wide and left_s is not None:
            parts.append(Content.styled(format_left(left_s), DIM))
    if state.stack and state.stack.pending and state.stack.settings:
        parts.append(Content.styled("stack not measured", "$warning"))
    elif state.stack and state.stack.comparison and state.stack.settings:
        effect = by_objective(state.stack.result, state.stack.comparison, state.yardstick, short=not wide)
        once = f" {MEASURED_ONCE}" if wide and not state.stack.confirmed else ""
        parts.append(Content.assemble(("stack ", DIM), effect, (once, DIM)))
    return Content("  ").join(parts)
