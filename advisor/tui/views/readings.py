"""Readings beside the speed of a trial: its latest step times, energy, the GPU, disturbances, notes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_change, format_ms, format_repayment, format_seconds
from advisor.records import BaselineRecord, Finding, GpuReadings, TrialRecord, TrialResult, Verdict
from advisor.report.figures import energy_words, gpu_readings, on_cpu
from advisor.tui.text import DIM, bracketed, sparkline, trial_label
from advisor.tui.widgets.fact_list import Fact

_SAME_SHARE = 0.005


def energy_text(result: TrialResult, baseline: BaselineRecord | None) -> Content | None:
    """Energy per sample with its change against the baseline; None where it was not measured."""
    before = baseline.result if baseline else None
    words = energy_words(result, before)
    if not words:
        return None
    old = before.energy_j_per_sample if before else None
    change = [Content(" "), bracketed(format_change(result.energy_j_per_sample, old))] if old is not None else []
    return Content("").join([Content(words), *change])


def readings_text(gpu: GpuReadings | None) -> Content | None:
    """NVML's readings while a trial was timed, in one line, with problems marked; None without readings."""
    if gpu is None or not gpu.samples:
        return None
    parts = [Content.styled(reading.text, "$warning" if reading.problem else "") for reading in gpu_readings(gpu)]
    return Content("; ").join(parts)


def troubles_text(gpu: GpuReadings | None) -> Content | None:
    """The problems among these readings; None where there is none."""
    troubles = [reading.text for reading in gpu_readings(gpu) if reading.problem] if gpu and gpu.samples else []
    return Content.styled("; ".join(troubles), "$warning") if troubles else None


def cpu_text(baseline: BaselineRecord) -> Content | None:
    """The same step on the CPU against the GPU, marked where the CPU is the faster; None where that was not tried."""
    words = on_cpu(baseline)
    faster = baseline.cpu_step_ms is not None and baseline.cpu_step_ms < baseline.step_ms
    return Content.styled(words, "bold $warning" if faster else "") if words else None


def trade_text(record: TrialRecord, baseline: BaselineRecord | None) -> Content | None:
    """Memory saved against time lost, for settings smaller and slower than the baseline; None for others."""
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


def start_up_text(record: TrialRecord) -> str:
    """The time until a trial was steady and, of a faster one, when that is made up for: ``start-up 0.41 s``."""
    told = f"start-up {format_seconds(start_up_s(record.result))}"
    if not record.alone or record.verdict is not Verdict.FASTER:
        return told
    repaid = format_repayment(record.break_even_steps)
    return f"{told}, {repaid}" if record.break_even_steps != 0 else repaid


def start_up_s(result: TrialResult) -> float | None:
    """Seconds from the start to the steady state: applying the settings and warming up."""
    parts = [part for part in (result.prepare_s, result.warmup_s) if part is not None]
    return sum(parts) if parts else None


def remarks(result: TrialResult) -> list[Fact]:
    """Remarks on a trial: that it is unreliable, and why; and its own notes."""
    rows: list[Fact] = []
    if result.disturbed:
        rows.append(("!", Content.styled(f"Unreliable: {result.disturbed}.", "$warning")))
    return [*rows, *(("Note", note) for note in result.notes)]


def found_text(finding: Finding) -> Content:
    """A finding: where, what it does, what to write instead; then the line itself."""
    told = Content.assemble((finding.place, "bold"), f"  {finding.what}: {finding.advice}.")
    return Content.assemble(told, "\n", (finding.text.strip(), "$primary"))


def findings_of(recipe: str, findings: Iterable[Finding]) -> list[Fact]:
    """The findings that a recipe prices, as facts."""
    return [("Found at", found_text(finding)) for finding in findings if finding.recipe == recipe]


_CELLS = 16
# Fewer cells for a trial's name say nothing.
_LEAST_NAME = 16


def live_line(state: SessionState) -> str:
    """Return the step times of the running trial's last blocks as a line: the baseline's is half as high as can be.

    Empty before the first block. Beside no baseline of the same batch size the trial's own median is half as high.
    """
    if not state.live_ms:
        return ""
    usual = _baseline_ms(state) or median(state.live_ms)
    return sparkline(state.live_ms, min(_CELLS, len(state.live_ms)), top=2 * usual)


def live_step_ms(state: SessionState) -> float | None:
    """Return the median step time of the running trial so far; None before its first block."""
    return median(state.live_ms) if state.live_ms else None


def _baseline_ms(state: SessionState) -> float | None:
    """The baseline's step time, where its batch is as large as the running trial's."""
    baseline = state.baseline
    return baseline.step_ms if baseline and baseline.result.batch_size in (None, state.live_samples) else None


def live_state(state: SessionState) -> Content:
    """Return the running trial's state and its latest step times: ``measuring ▄▄▄ 25.5 ms, baseline 32.6 ms``."""
    doing, step_ms = Content.styled(state.activity, "$accent"), live_step_ms(state)
    if step_ms is None:
        return doing
    baseline_ms = _baseline_ms(state)
    beside = f", baseline {format_ms(baseline_ms)}" if baseline_ms else ""
    return doing + Content.assemble(" ", (live_line(state), "$primary"), f" {format_ms(step_ms)}", (beside, DIM))


def live_text(state: SessionState, width: int) -> Content:
    """Return the running trial in ``width`` cells: its name, its state and its latest step times."""
    tail = Content("  ") + live_state(state)
    name = trial_label(state.running, state, max(_LEAST_NAME, width - 2 - tail.cell_length))
    return Content.assemble(("▶ ", "$accent"), (name, "bold"), tail)
