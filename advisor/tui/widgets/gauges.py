"""The line under the tabs: live gauges of GPU and host, read in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from textual import work
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from advisor.experiment.past.journal import PastSession
from advisor.figures.formatting import MISSING, format_bytes
from advisor.records import GpuReading, HostSample
from advisor.report.figures import sparkline
from advisor.tui.text import DIM

_HISTORY = 12


@dataclass(frozen=True, slots=True)
class Reading:
    """All gauges at one moment."""

    gpus: tuple[GpuReading, ...] = ()
    host: HostSample | None = None


GaugeReader = Callable[[], Reading]


class GaugeStrip(Static):
    """One line of gauges; of a recorded session its date. A short screen has no room for it.

    What is read is painted with the clock: each ``tick`` shows the last reading or takes the next.
    """

    reading: reactive[Reading | None] = reactive(None, always_update=True)
    device_uuid: reactive[str | None] = reactive(None)

    def __init__(self, read: GaugeReader | None, recorded: PastSession | None = None) -> None:
        date = f"Recorded {recorded.started.day} {recorded.started:%b %Y %H:%M}" if recorded else ""
        super().__init__(date, id="gauges")
        self._read = read
        self._taken: Reading | None = None
        self._history: deque[float] = deque([0.0] * _HISTORY, maxlen=_HISTORY)

    def on_mount(self) -> None:
        self.tick()

    def tick(self) -> None:
        """Show the last reading or, every other time, take the next."""
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
            problem = f"The gauges cannot be read: {type(error).__name__}: {error}"
            self.app.call_from_thread(self.update, Content.styled(problem, "$warning"))
            return
        if self.reading is None:
            self.app.call_from_thread(self.tick)

    def watch_reading(self, reading: Reading | None) -> None:
        if reading is not None:
            gpu = gpu_of(reading, self.device_uuid)
            host = reading.host.cpu_percent if reading.host else 0.0
            self._history.append(float(gpu.utilization_percent or 0) if gpu else host)
            self.update(gauges_text(reading, gpu, sparkline(self._history, _HISTORY)), layout=False)


def gpu_of(reading: Reading, uuid: str | None) -> GpuReading | None:
    """Return the GPU that is measured on, or the first."""
    wanted = (uuid or "").removeprefix("GPU-").lower()
    named = {sample.uuid.removeprefix("GPU-").lower(): sample for sample in reading.gpus}
    return named.get(wanted) or next(iter(reading.gpus), None)


def gauges_text(reading: Reading, gpu: GpuReading | None, history: str) -> Content:
    """Return the gauges, the most important first; ``history`` is a line of the GPU's or the processor's use."""
    parts = [("GPU" if gpu else "CPU", history)]
    if gpu:
        parts.append(("", MISSING if gpu.utilization_percent is None else f"{gpu.utilization_percent} %"))
        parts.append(("mem", f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_total_bytes)}"))
        others = ((gpu.power_w, "{:.0f} W"), (gpu.temperature_c, "{} °C"), (gpu.sm_clock_mhz, "{} MHz"))
        parts += [("", form.format(value)) for value, form in others if value is not None]
    if host := reading.host:
        parts.append(("CPU" if gpu else "", f"{host.cpu_percent:.0f} %"))
        parts.append(("RAM", f"{format_bytes(host.memory_used_bytes)} of {format_bytes(host.memory_total_bytes)}"))
    told = [Content.assemble((f"{name} " if name else "", DIM), text) for name, text in parts]
    return Content("  ").join(told)
