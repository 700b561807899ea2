"""Formats numbers for people. Pure functions that the app, the headless reporter and the exports share.

A missing number is ``–``. A speed-up always has its interval; one that shows no change has no figure.
"""

# ruff: noqa: RUF001, RUF002 - the en dash stands between the ends of an interval

import math
import re
from collections.abc import Sequence
from typing import Any

from advisor.records import (
    Comparison,
    NumericsResult,
    Outcome,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
    Verdict,
    text_of,
)

MISSING = "–"
# Characters that a terminal would obey (C0 without tab and line feed, C1), that hide or turn text (separators,
# directions), and halves of surrogate pairs, which no file can hold.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T", "P", "E")
_OUTCOMES = {outcome: outcome.value.replace("_", " ") for outcome in Outcome} | {Outcome.NON_FINITE: "loss not finite"}


def printable(text: str) -> str:
    """The user's text with control characters made visible (ESC as ``\\x1b``); tabs and ends of lines stay."""
    return CONTROLS.sub(lambda control: ascii(control[0])[1:-1], text)


def plain(text: str) -> str:
    """The user's text in one line, with its control characters made visible."""
    return printable(re.sub(r"[\t\r\n]", " ", text)).rstrip()


def printable_in(value: Any) -> Any:
    """Built-in values (as in JSON) with the control characters in all texts made visible."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_in(key): printable_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_in(item) for item in value]
    return value


def format_ratio(comparison: Comparison | None) -> str:
    """A speed-up with its interval, ``1.62x (1.60–1.64)``; ``same`` or ``unclear`` if it shows no change."""
    if comparison is None:
        return MISSING
    return format_interval(comparison) if comparison.verdict.is_change else comparison.verdict.value


def format_interval(comparison: Comparison | None) -> str:
    """A speed-up with its interval, even if it shows no change: ``1.002x (0.996–1.008)``."""
    if comparison is None:
        return MISSING
    half_width, digits = (comparison.ci_high - comparison.ci_low) / 2, 2
    if comparison.speedup >= 9.995:
        digits = 0 if comparison.speedup >= 99.95 else 1
    elif half_width < 0.005 and abs(comparison.speedup - 1) < 0.1:
        digits = 3
    low, high = f"{comparison.ci_low:.{digits}f}", f"{comparison.ci_high:.{digits}f}"
    return f"{comparison.speedup:.{digits}f}x ({low}–{high})"


def interval_or_words(comparison: Comparison | None) -> str:
    """A speed-up with its interval, even if it shows no change; in words if the interval says nothing."""
    tells_nothing = comparison is not None and comparison.is_open
    return Verdict.UNCLEAR.value if tells_nothing else format_interval(comparison)


def format_within(half_width: float) -> str:
    """Half the width of an interval as a share: ``±0.4 %``; ``±>100 %`` if the interval says nothing."""
    return f"±{format_percent(half_width, digits=1)}" if half_width < 1 else "±>100 %"


def format_percent(share: float | None, *, digits: int = 0) -> str:
    """A share of 0 to 1 in per cent: ``42 %``; a share that rounds to nothing but is not zero is ``<1 %``."""
    if share is None or not math.isfinite(share):
        return MISSING
    smallest = 10.0**-digits
    if 0 < 100 * share < smallest / 2:
        return f"<{smallest:.{digits}f} %"
    return f"{100 * share:.{digits}f} %"


def format_bytes(size_bytes: float | None) -> str:
    """A size in binary units, three significant digits: ``8.54 GiB``."""
    if size_bytes is None or not math.isfinite(size_bytes):
        return MISSING
    value, unit = float(size_bytes), 0
    while abs(value) >= 1023.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{_three_digits(value)} {_SIZES[unit]}"


def format_change(new: float | None, old: float | None) -> str:
    """The relative change of a figure: ``-48 %``; ``same`` below half a per cent; ``3.8x as much`` above a hundred."""
    if new is None or not old or not math.isfinite(new) or not math.isfinite(old):
        return MISSING
    change = new / old - 1
    if change > 1.005:
        return f"{format_times(new / old)} as much"
    return "same" if abs(change) < 0.005 else f"{100 * change:+.0f} %"


def format_times(factor: float) -> str:
    """The ratio of two figures, without an interval: ``59x``, ``1.3x``."""
    return f"{factor:,.0f}x" if factor >= 9.95 else f"{factor:.1f}x"


def format_energy(energy_j: float | None) -> str:
    """An amount of energy given in joules: ``84.3 mJ``, ``1.92 J``."""
    if energy_j is None or not math.isfinite(energy_j):
        return MISSING
    return f"{_three_digits(energy_j * 1e3)} mJ" if abs(energy_j) < 0.995 else f"{_three_digits(energy_j)} J"


def format_ms(duration_ms: float | None) -> str:
    """A short duration given in milliseconds: ``84.3 µs``, ``9.21 ms``, ``1.34 s``."""
    if duration_ms is None or not math.isfinite(duration_ms):
        return MISSING
    if duration_ms == 0:
        return "0 ms"
    if abs(duration_ms) < 0.0995:
        return f"{_three_digits(duration_ms * 1e3)} µs"
    if abs(duration_ms) < 9995:
        return f"{_three_digits(duration_ms)} ms"
    return format_seconds(duration_ms / 1e3)


def format_seconds(duration_s: float | None) -> str:
    """A duration given in seconds: ``0.41 s``, ``13.2 s``, ``2 min 05 s``, ``1 h 03 min``."""
    if duration_s is None or not math.isfinite(duration_s):
        return MISSING
    if duration_s < 59.5:
        return f"{duration_s:.2f} s" if duration_s < 0.995 else f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_count(count: float | None) -> str:
    """A count as text; from ten thousand on, in thousands, millions and so on: ``4,096``, ``25.6 M``."""
    if count is None or not math.isfinite(count):
        return MISSING
    if abs(count) < 10_000:
        return f"{count:,.0f}" if float(count).is_integer() or abs(count) >= 100 else _three_digits(count)
    value, unit = float(count), 0
    while abs(value) >= 999.5 and unit < len(_COUNTS) - 1:
        value, unit = value / 1e3, unit + 1
    return f"{_three_digits(value)} {_COUNTS[unit]}"


def format_amount(amount: float, unit: str) -> str:
    """An amount with a unit and its prefix: ``512 FLOP``, ``1.23 GFLOP``."""
    return f"{format_count(amount)}{unit}" if abs(amount) >= 10_000 else f"{_three_digits(amount)} {unit}"


def format_rate(per_s: float | None, unit: str = "samples") -> str:
    """A rate: ``2,431 samples/s``, ``412 TFLOP/s``."""
    if per_s is None or not math.isfinite(per_s):
        return MISSING
    if unit in ("FLOP", "B", "J"):
        return f"{format_amount(per_s, unit)}/s"
    return f"{_three_digits(per_s) if per_s < 100 else f'{per_s:,.0f}'} {unit}/s"


def format_numerics(numerics: NumericsResult | None) -> str:
    """Measured numerics with the figure: ``exact``, ``close (3.1e-03)``, ``changed (0.2), declared close``."""
    if numerics is None:
        return "not compared"
    if not numerics.compared:
        return f"not compared, declared {numerics.declared.value}"
    difference = f" ({numerics.difference:.1e})" if numerics.difference else ""
    declared = f", declared {numerics.declared.value}" if numerics.worse_than_declared else ""
    return f"{numerics.measured.value}{difference}{declared}"


def format_outcome(result: TrialResult) -> str:
    """The outcome of a trial, with the reason if it failed: ``out of memory: tried to allocate 2 GiB``."""
    words = _OUTCOMES[result.outcome]
    reason = " ".join(result.reason.split())
    return f"{words}: {reason}" if reason and result.outcome is not Outcome.MEASURED else words


def format_pending(stack: StackRecord) -> str:
    """The settings of a stack that are left after rejections: ``2 settings, not measured since you ...``."""
    count = len(stack.settings)
    return f"{count or 'no'} setting{'' if count == 1 else 's'}, {stack.result.reason}"


def format_worth(record: TrialRecord) -> str:
    """The gain of a setting that is already on, from the trial without it: ``already on, worth 2.7 % (2.2–3.1)``."""
    comparison = record.comparison
    if comparison is None or not comparison.verdict.is_change:
        unclear = comparison is not None and comparison.verdict is Verdict.UNCLEAR
        return f"already on{', its worth unclear' if unclear else ', worth nothing' if comparison else ''}"
    costs = comparison.verdict is Verdict.FASTER
    ratios = (comparison.ci_low, comparison.speedup, comparison.ci_high)
    low, worth, high = sorted(100 * ((ratio if costs else 1 / ratio) - 1) for ratio in ratios)
    digits = 1 if worth < 10 else 0
    figures = f"{worth:.{digits}f} % ({low:.{digits}f}–{high:.{digits}f})"
    return f"already on, {'but costs' if costs else 'worth'} {figures}"


def counted(count: int, thing: str) -> str:
    """A number of things: ``1 line``, ``3 lines``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def format_first(words: Sequence[str], most: int, between: str = ", ") -> str:
    """The first of some words, and the number of the others: ``a, b and 3 more``; empty for none."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def format_break_even(steps: int | None) -> str:
    """The step after which a slower start pays off: ``at once``, ``after 1,200 steps``, ``never``."""
    if steps is None:
        return "never"
    return f"after {format_count(steps)} step{'' if steps == 1 else 's'}" if steps else "at once"


def format_setting(key: str, value: Value) -> str:
    """A setting in YAML's notation: ``precision.autocast: bfloat16``."""
    return f"{key}: {text_of(value)}"


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
