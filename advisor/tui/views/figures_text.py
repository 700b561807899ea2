"""Figures of the ranked settings as text: speed-ups, intervals, steps, memory. Pure functions."""

from __future__ import annotations

from textual.content import Content

from advisor.figures.formatting import (
    format_bytes,
    format_change,
    format_ms,
    format_numerics,
)
from advisor.records import Comparison
from advisor.report.rows import SIGNS, Figures
from advisor.tui.text import bracketed


def digits_of(comparison: Comparison) -> int:
    """The digits behind the point that a speed-up is shown with."""
    return 2 if comparison.speedup < 9.995 else 1 if comparison.speedup < 99.95 else 0


def speedup_text(figures: Figures) -> str:
    """The speed-up: ``1.39x`` alone, ``+1.24x`` on top of the others, ``in 1.51x`` of all of them together."""
    told = f"{figures.effect.speedup:.{digits_of(figures.effect)}f}x"
    return f"{SIGNS[figures.against]}{told}"


def interval_text(comparison: Comparison) -> str:
    """The interval of a speed-up: ``1.49–1.53``."""  # noqa: RUF002 - the en dash stands between the ends of an interval
    digits = digits_of(comparison)
    return f"{comparison.ci_low:.{digits}f}–{comparison.ci_high:.{digits}f}"  # noqa: RUF001


def steps_text(figures: Figures) -> str:
    """The step times without and with the settings: ``73.0 → 48.4 ms``."""
    before, after = format_ms(figures.before_ms), format_ms(figures.after_ms)
    return f"{without_unit(before, after)} → {after}"


def without_unit(before: str, after: str) -> str:
    """A figure without its unit where the one behind it has the same."""
    number, _, unit = before.partition(" ")
    return number if after.endswith(f" {unit}") else before


def memory_text(figures: Figures) -> Content:
    """The peak memory without and with the settings, and the change."""
    before, after = figures.memory_bytes
    if before is None:
        return Content(format_bytes(after))
    return Content.assemble(pair_text(figures.memory_bytes), " ", bracketed(format_change(after, before)))


def numerics_text(figures: Figures) -> str:
    """The class of the numerics with its figure."""
    return "not compared" if figures.numerics is None else format_numerics(figures.numerics)


def pair_text(peaks: tuple[int | None, int | None]) -> Content:
    """The peaks without and with settings: ``9.10 → 5.20 GiB``; one alone where the other is not known."""
    before, after = (format_bytes(peak) for peak in peaks)
    return Content(after if peaks[0] is None else f"{without_unit(before, after)} → {after}")
