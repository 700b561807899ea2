"""What stands beside a trial's speed: energy, the GPU's readings, what disturbed it, its notes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from textual.content import Content

from advisor.formatting import format_bytes, format_change, format_energy, format_ms, format_times
from advisor.records import BaselineRecord, Finding, GpuReadings, TrialRecord, TrialResult
from advisor.tui.text import DIM
from advisor.tui.widgets.fact_list import Fact

_SAME_SHARE = 0.005


def energy_text(result: TrialResult, baseline: BaselineRecord | None) -> Content | None:
    """Energy per sample with its change against the baseline; None where it was not measured."""
    now = result.energy_j_per_sample
    if now is None:
        return None
    before = baseline.result.energy_j_per_sample if baseline else None
    if before is None:
        return Content(f"{format_energy(now)} a sample")
    return Content.assemble(f"{format_energy(before)} → {format_energy(now)} a sample ", changed(now, before))


def changed(new: float, old: float) -> Content:
    """A relative change in brackets: less is green, more is amber."""
    change = format_change(new, old)
    style = "$success" if change.startswith("-") else "$warning" if change.startswith("+") else DIM
    return Content.styled(f"({change})", style)


def readings_text(gpu: GpuReadings | None) -> Content | None:
    """What NVML read while a trial was timed, in one line; None without readings."""
    if gpu is None or not gpu.samples:
        return None
    parts = [Content(text) for text in _gauges(gpu)]
    if gpu.throttle_reasons:
        parts.append(Content.styled(f"held back by {', '.join(gpu.throttle_reasons)}", "$warning"))
    parts += _company(gpu.foreign_processes)
    return Content(", ").join(parts)


def _gauges(gpu: GpuReadings) -> Iterator[str]:
    if gpu.temperature_c is not None:
        yield f"{gpu.temperature_c} °C"
    if gpu.sm_clock_mhz is not None:
        lowest = gpu.sm_clock_lowest_mhz
        fell = f" (lowest {lowest})" if lowest is not None and lowest < gpu.sm_clock_mhz else ""
        yield f"SM {gpu.sm_clock_mhz}{fell} MHz"
    if gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W"


def _company(count: int | None) -> list[Content]:
    if count is None:
        return [Content.styled("other processes unknown", DIM)]
    if not count:
        return []
    return [Content.styled(f"{count} other process{'es' * (count != 1)} on the GPU", "$warning")]


def cpu_text(baseline: BaselineRecord) -> Content | None:
    """The same step on the CPU against the GPU; None where that was not tried."""
    cpu_ms = baseline.cpu_step_ms
    if cpu_ms is None or baseline.step_ms <= 0:
        return None
    factor = cpu_ms / baseline.step_ms
    step = f"{format_ms(cpu_ms)} a step: "
    if factor >= 1:
        return Content(f"{step}the GPU is {format_times(factor)} as fast")
    return Content.assemble(step, (f"{format_times(1 / factor)} as fast as the GPU", "bold $warning"))


def trade_text(record: TrialRecord, baseline: BaselineRecord | None) -> Content | None:
    """Memory saved against time lost, for what is smaller and slower than the baseline; None for anything else."""
    if baseline is None or record.samples_per_s is None:
        return None
    old, new = baseline.result.peak_reserved_bytes, record.result.peak_reserved_bytes
    lost = baseline.samples_per_s / record.samples_per_s - 1
    if not old or new is None or new > (1 - _SAME_SHARE) * old or lost < _SAME_SHARE:
        return None
    return Content.assemble(
        ("saves ", DIM),
        (f"{format_bytes(old - new)} ({format_change(new, old)})", "$success"),
        (" for ", DIM),
        (f"{format_change(1 + lost, 1)} time a sample", "$warning"),
    )


def remarks(result: TrialResult) -> list[Fact]:
    """What a person has to know of a trial: that it is unreliable, and why; updates skipped; its own notes."""
    rows: list[Fact] = []
    if result.disturbed:
        rows.append(("!", Content.styled(f"Unreliable: {result.disturbed}.", "$warning")))
    if result.skipped_steps:
        updates = f"{result.skipped_steps} update{'s' * (result.skipped_steps != 1)}"
        rows.append(("!", f"The gradient scaler skipped {updates} in the probe: gradients overflowed."))
    return [*rows, *(("Note", note) for note in result.notes)]


def found_text(finding: Finding) -> Content:
    """A finding: where, what it does, what to write instead; then the line itself."""
    told = Content.assemble((finding.place, "bold"), f"  {finding.what}: {finding.advice}.")
    return Content.assemble(told, "\n", (finding.text.strip(), "$primary"))


def findings_of(recipe: str, findings: Iterable[Finding]) -> list[Fact]:
    """The findings that a recipe prices, as facts."""
    return [("Found at", found_text(finding)) for finding in findings if finding.recipe == recipe]
