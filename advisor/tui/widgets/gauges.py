"""The line under the tabs: live gauges of GPU and host, read in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from textual import work
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from advisor.figures.formatting import MISSING, format_bytes
from advisor.records import GpuReading, HostSample
from advisor.report.figures import sparkline
from advisor.tui.context import Recorded
from advisor.tui.text import DIM, meter

_HISTORY = 40
_METER = 8
_LEAST_LINE = 6


@dataclass(frozen=True, slots=True)
class Reading:
    """All gauges at one moment."""

    gpus: tuple[GpuReading, ...] = ()
    host: HostSample | None = None


GaugeReader = Callable[[], Reading]


class GaugeStrip(Static):
    """One line of gauges; of a recorded session its date. A short screen has no room for it."""

    reading: reactive[Reading | None] = reactive(None, always_update=True)
    device_uuid: reactive[str | None] = reactive(None)
    problem: reactive[str] = reactive("")

    def __init__(self, read: GaugeReader | None, recorded: Recorded | None = None) -> None:
        super().__init__(id="gauges", markup=False)
        self._read = read
        self._recorded = recorded
        self._taken: Reading | None = None
        self._history: deque[float] = deque(maxlen=_HISTORY)

    def on_mount(self) -> None:
        self.tick()
        self._draw()

    def tick(self) -> None:
        """Show the last reading or, every other time, take the next: what is shown is painted with the clock."""
        if self._taken is not None:
            self.reading, self._taken = self._taken, None
        elif self._read is not None:
            self._take(self._read)

    @work(thread=True, exclusive=True, exit_on_error=False, group="gauges")
    def _take(self, read: GaugeReader) -> None:
        try:
            self._taken = read()
        except Exception as error:  # a driver that is being replaced, say: the session goes on without gauges
            self._read = None
            self.app.call_from_thread(setattr, self, "problem", f"{type(error).__name__}: {error}")
            return
        if self.reading is None:
            self.app.call_from_thread(self.tick)

    def watch_reading(self, reading: Reading | None) -> None:
        if reading is not None:
            gpu = gpu_of(reading, self.device_uuid)
            host = reading.host.cpu_percent if reading.host else 0.0
            self._history.append(float(gpu.utilization_percent or 0) if gpu else host)
        self._draw()

    def _draw(self) -> None:
        self.update(self._text(self.size.width - 2), layout=False)

    on_resize = watch_device_uuid = watch_problem = _draw

    def _text(self, width: int) -> Content:
        if self._recorded is not None:
            return Content.styled(f"Recorded {self._recorded.date_text}", DIM)
        if self.problem:
            return Content.styled(f"The gauges cannot be read: {self.problem}", "$warning")
        if self.reading is None:
            return Content.styled("Reading the gauges…" if self._read else "", DIM)
        return gauges_text(self.reading, self.device_uuid, tuple(self._history), width)


def gpu_of(reading: Reading, uuid: str | None) -> GpuReading | None:
    """Return the GPU that is measured on, or the first."""
    wanted = (uuid or "").removeprefix("GPU-").lower()
    named = {sample.uuid.removeprefix("GPU-").lower(): sample for sample in reading.gpus}
    return named.get(wanted) or next(iter(reading.gpus), None)


def gauges_text(reading: Reading, uuid: str | None, history: tuple[float, ...], width: int) -> Content:
    """Return the gauges that fit into this width, the most important first."""
    gpu, host = gpu_of(reading, uuid), reading.host
    parts = [*(_gpu_parts(gpu, history, width) if gpu else [])]
    if host:
        line = f"{sparkline(history, 2 * _LEAST_LINE)} " if not gpu and history else ""
        used = f"{format_bytes(host.memory_used_bytes)} of {format_bytes(host.memory_total_bytes)}"
        parts.append(Content.assemble(("CPU ", DIM), (line, "$primary"), _percent(host.cpu_percent)))
        parts.append(Content.assemble(("RAM ", DIM), used))
    shown = Content("")
    for part in parts:
        longer = shown + Content("  ") + part if shown else part
        if longer.cell_length > width:
            break
        shown = longer
    return shown


def _gpu_parts(gpu: GpuReading, history: tuple[float, ...], width: int) -> list[Content]:
    share = gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0
    line = sparkline(history, max(_LEAST_LINE, min(_HISTORY, width // 8)))
    wide = width >= 100
    used = f"{format_bytes(gpu.memory_used_bytes)}{f' of {format_bytes(gpu.memory_total_bytes)}' if wide else ''}"
    bar = meter(share, _METER, "$primary") + Content(" ") if wide else Content("")
    parts = [
        Content.assemble(("GPU ", DIM), (f"{line} ", "$primary"), _percent(gpu.utilization_percent)),
        Content.assemble(("mem ", DIM), bar, used),
    ]
    others = ((gpu.power_w, "{:.0f} W"), (gpu.temperature_c, "{} °C"), (gpu.sm_clock_mhz, "{} MHz"))
    return parts + [Content(form.format(value)) for value, form in others if value is not None]


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f} %"
