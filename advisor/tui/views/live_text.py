"""The running trial while its blocks are timed: step times as a line, beside the baseline's. Pure functions."""

from __future__ import annotations

from statistics import median

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_ms
from advisor.tui.text import DIM, shortened, sparkline

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


def live_text(state: SessionState, width: int) -> Content:
    """Return the running trial in ``width`` cells: its name, its state and its latest step times."""
    if not state.running:
        return Content.styled(state.activity.capitalize() or "No trial runs just now.", DIM)
    tail = Content.assemble("  ", (state.activity, "$accent"))
    step_ms = live_step_ms(state)
    if step_ms is not None:
        baseline_ms = _baseline_ms(state)
        beside = f", baseline {format_ms(baseline_ms)}" if baseline_ms else ""
        tail += Content.assemble(" ", (live_line(state), "$primary"), f" {format_ms(step_ms)}", (beside, DIM))
    name = shortened(state.running, max(_LEAST_NAME, width - 2 - tail.cell_length))
    return Content.assemble(("▶ ", "$accent"), (name, "bold"), tail)
