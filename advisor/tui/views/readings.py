"""Readings beside the speed of a trial: its latest step times, energy, the GPU, disturbances, notes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_change, format_ms
from advisor.records import BaselineRecord, Finding, GpuReadings, TrialResult
from advisor.report.figures import energy_words, gpu_readings
from advisor.tui.facts import Fact
from advisor.tui.text import DIM, bracketed, sparkline


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
