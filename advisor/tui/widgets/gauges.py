"""The line under the tabs: live gauges of GPU and host, read in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import work
from textual.content import Content
from textual.widgets import Static

from advisor.experiment.past.journal import PastSession
from advisor.figures.formatting import MISSING, format_bytes
from advisor.records import GpuReading, HostSample
from advisor.tui.text import DIM


@dataclass(frozen=True, slots=True)
class Reading:
    """All gauges at one moment."""

    gpus: tuple[GpuReading, ...] = ()
    host: HostSample | None = None


GaugeReader = Callable[[], Reading]


class GaugeStrip(Static):
    """One line of gauges; of a recorded session its date. A short screen has no room for it."""

    def __init__(self, read: GaugeReader | None, recorded: PastSession | None = None) -> None:
        date = f"Recorded {recorded.started.day} {recorded.started:%b %Y %H:%M}" if recorded else ""
        super().__init__(date, id="gauges")
        self._read = read
        self.device_uuid: str | None = None

    def on_mount(self) -> None:
        self.tick()

    def tick(self) -> None:
        """Read the gauges, and show them."""
        if self._read is not None:
            self._take(self._read)

    @work(thread=True, exclusive=True, exit_on_error=False, group="gauges")
    def _take(self, read: GaugeReader) -> None:
        try:
            reading = read()
        except Exception:  # a driver that is being replaced, say: the session goes on without gauges
            self._read = None
            self.app.call_from_thread(self.update, "The gauges cannot be read.")
        else:
            self.app.call_from_thread(self.show_reading, reading)

    def show_reading(self, reading: Reading) -> None:
        """Show what was read."""
        self.update(gauges_text(reading, self.device_uuid), layout=False)


def gauges_text(reading: Reading, uuid: str | None) -> Content:
    """The gauges of the GPU that is measured on, or of the first, and of the host, the most important first."""
    parts: list[tuple[str, str]] = []
    named = {sample.uuid.removeprefix("GPU-").lower(): sample for sample in reading.gpus}
    if gpu := named.get((uuid or "").removeprefix("GPU-").lower()) or next(iter(reading.gpus), None):
        parts.append(("GPU", MISSING if gpu.utilization_percent is None else f"{gpu.utilization_percent} %"))
        parts.append(("mem", f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_total_bytes)}"))
        others = ((gpu.power_w, "{:.0f} W"), (gpu.temperature_c, "{} °C"), (gpu.sm_clock_mhz, "{} MHz"))
        parts += [("", form.format(value)) for value, form in others if value is not None]
    if host := reading.host:
        parts.append(("CPU", f"{host.cpu_percent:.0f} %"))
        parts.append(("RAM", f"{format_bytes(host.memory_used_bytes)} of {format_bytes(host.memory_total_bytes)}"))
    told = [Content.assemble((f"{name} " if name else "", DIM), text) for name, text in parts]
    return Content("  ").join(told)
