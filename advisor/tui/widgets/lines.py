"""The lines around a view, each painted as one text: the gauges under the tabs, the status, and the keys.

Textual's own footer mounts a dozen widgets whenever the keys change, which took half the time of a key press.
"""

import time
from collections.abc import Callable

from textual import work
from textual.binding import Binding
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from advisor.experiment.past.journal import PastSession
from advisor.figures.formatting import MISSING, format_bytes
from advisor.records import GpuReading, HostSample
from advisor.report.figures import STAGES
from advisor.tui.context import Context
from advisor.tui.text import DIM, trial_name
from advisor.tui.widgets.texts import show_text


def spread(left: Content, right: Content, width: int) -> Content:
    """Return a line with one text at its left end and one at its right end."""
    return left.pad_right(max(0, width - left.cell_length - right.cell_length)) + right


GaugeReader = Callable[[], tuple[tuple[GpuReading, ...], HostSample]]


class GaugeStrip(Static):
    """One line of gauges, or the date of a recorded session. A short screen has no room for the line."""

    def __init__(self, read: GaugeReader | None, recorded: PastSession | None = None) -> None:
        date = f"Recorded {recorded.started.day} {recorded.started:%b %Y %H:%M}" if recorded else ""
        super().__init__(date, id="gauges")
        self._read = read
        self.device_uuid: str | None = None

    def on_mount(self) -> None:
        self.tick()

    @work(thread=True, exclusive=True, exit_on_error=False, group="gauges")
    def tick(self) -> None:
        """Read the gauges in a thread, and show them."""
        if self._read:
            self.app.call_from_thread(self.show_reading, *self._read())

    def show_reading(self, gpus: tuple[GpuReading, ...], host: HostSample) -> None:
        """Show the readings."""
        self.update(gauges_text(gpus, host, self.device_uuid), layout=False)


def gauges_text(gpus: tuple[GpuReading, ...], host: HostSample, uuid: str | None) -> Content:
    """The gauges of the host and of the measured GPU (the first GPU if unknown), the most important first."""
    parts: list[tuple[str, str]] = []
    named = {sample.uuid.removeprefix("GPU-").lower(): sample for sample in gpus}
    if gpu := named.get((uuid or "").removeprefix("GPU-").lower()) or next(iter(gpus), None):
        parts.append(("GPU", MISSING if gpu.utilization_percent is None else f"{gpu.utilization_percent} %"))
        parts.append(("mem", f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_total_bytes)}"))
        others = ((gpu.power_w, "{:.0f} W"), (gpu.temperature_c, "{} °C"), (gpu.sm_clock_mhz, "{} MHz"))
        parts += [("", form.format(value)) for value, form in others if value is not None]
    parts.append(("CPU", f"{host.cpu_percent:.0f} %"))
    parts.append(("RAM", f"{format_bytes(host.memory_used_bytes)} of {format_bytes(host.memory_total_bytes)}"))
    told = [Content.assemble((f"{name} " if name else "", DIM), text) for name, text in parts]
    return Content("  ").join(told)


# How long a notice stays on screen, in seconds; and the colours of warnings and errors.
NOTICE_S = 6.0
_NOTICES = {"warning": "bold $warning", "error": "bold $error"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SHORT_NAME = 8  # the least cells for a trial's name: a shorter piece says nothing
# Cells reserved for the state and the seconds of a trial, so that the name does not jump when the state changes.
_STATE = 40
_WIDE, _WIDEST_NAME, _METER = 100, 200, 12


class StatusBar(Static):
    """One line of text, which is painted without laying out the screen.

    Left: the running trial, its state and its seconds, or a notice. Right: the time left. ``turns`` counts the
    spinner's turns.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(id="status", markup=False)
        self.context = context
        self._notice, self._noticed_until, self.turns = Content(""), 0.0, 0

    def show_notice(self, text: str, severity: str) -> None:
        """Show a notice in place of the running trial, for some seconds."""
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
        show_text(self, spread(now, far, width), layout=False)

    def on_resize(self) -> None:
        self.show()


def is_working(context: Context) -> bool:
    """Whether something is being measured, or about to be."""
    state = context.state
    return bool(context.busy_with or state.running) or (state.finished is None and state.failure is None)


def now_text(context: Context, room: int) -> Content:
    """The running trial with its state and its seconds, ``room`` cells wide; the stage if no trial runs."""
    state = context.state
    if context.recorded:
        interrupted = state.finished is not None and state.finished.cancelled
        ended = ", failed" if state.failure else ", interrupted" if interrupted else ""
        return Content.styled(f"Recorded{ended}: perf-advisor --resume {context.session_id} goes on", "bold")
    if state.failure:
        return Content.styled("The session cannot go on", "$error")
    if state.paused:
        return Content.styled("Paused: space resumes; the time left stands still", "bold $warning")
    if not state.running:
        return Content.styled(_stage(context), "bold")
    doing = Content("")
    if context.paused:
        doing = Content.assemble("  ", ("pauses after this trial", "$warning"))
    elif state.activity:
        doing = Content.assemble("  ", (state.activity, "$accent"))
    spent_s, expected_s = int(context.clock() - context.trial_began_at), state.expected_s
    about = f" of about {max(1, round(expected_s))}" if expected_s is not None else ""
    tail = doing + Content.styled(f"  {spent_s}{about} s", DIM)
    stage, left = _stage(context), room - len(tail)
    both = stage if state.running in stage else f"{stage}: {trial_name(state.running, _WIDEST_NAME)}"
    told = both if len(both) <= min(left, room - _STATE) else trial_name(state.running, max(_SHORT_NAME, left))
    return Content.assemble((told, "bold"), tail)


def _stage(context: Context) -> str:
    state = context.state
    if state.finished:
        return context.busy_with or "Done"
    if state.is_loading and not state.running:
        return "Loading the model"
    told = STAGES.get(state.stage, state.stage)
    return told[:1].upper() + told[1:]


def left_text(context: Context, *, working: bool, wide: bool) -> Content:
    """The session's time left; empty if it is not known, and for a single trial after the session."""
    state = context.state
    if not working or (state.finished is not None and not (state.running and state.left_s)):
        return Content("")
    drawn = round(state.progress * _METER)
    meter = Content.assemble(("━" * drawn, "$primary"), ("━" * (_METER - drawn), "$foreground 15%"))
    minutes, seconds = divmod(round(context.left_s), 60)
    return Content(" ").join([*([meter] if wide else []), Content.styled(f"{minutes}:{seconds:02d} left", "bold")])


# The order of keys by their names. The keys of the view have the place 0; the keys in ``_LAST`` are always shown.
_STEERING = ("skip", "stop", "pause", "go_on", "wait", "untried")
_LAST = ("app.help", "app.quit")
_PLACES = {f"session.{name}": place for place, name in enumerate(_STEERING, start=-len(_STEERING))}
_PLACES |= {"table.sort": 1, "session.minute": 1, **dict.fromkeys(_LAST, 2)}


class KeyFooter(Widget):
    """Shows the keys that do something now, as many as fit, the session's keys first. Each can be clicked."""

    ALLOW_SELECT = False
    auto_links = False  # the links have our colours

    keys: reactive[tuple[Binding, ...]] = reactive(())

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        """Look the keys up once all present changes are done: a switch between views reports several."""
        if self.is_attached and screen is self.screen:
            self.call_later(self._look_up)

    def _look_up(self) -> None:
        found = dict[str, Binding]()
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if enabled and binding.show:
                found.setdefault(binding.action, binding)
        self.keys = tuple(sorted(found.values(), key=lambda binding: _PLACES.get(binding.id or "", 0)))

    def render(self) -> Content:
        palette = self.screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        end = Content.styled("▏", "$foreground 20%") + self._text(palette.binding) if palette else Content("")
        last = [self._text(binding) for binding in self.keys if binding.id in _LAST]
        room, shown = self.size.width - sum(map(len, [*last, end])), Content("")
        for text in (self._text(binding) for binding in self.keys if binding.id not in _LAST):
            if len(shown) + len(text) > room:
                break
            shown += text
        return spread(Content("").join([shown, *last]), end, self.size.width)

    def _text(self, binding: Binding) -> Content:
        text = Content.assemble((f" {self.app.get_key_display(binding)} ", "bold $accent"), f"{binding.description} ")
        return text.stylize(Style.from_meta({"@click": f"app.simulate_key('{binding.key}')"}))
