"""Numbers as a person reads them."""

# ruff: noqa: RUF001 - the en dash of an interval

import pytest

from advisor.figures import formatting
from advisor.records import Numerics, NumericsResult


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formatting.format_bytes, 512, "512 B"),
        (formatting.format_bytes, 1023.9 * 1024, "1.00 MiB"),
        (formatting.format_bytes, 9.1e9, "8.48 GiB"),
        (formatting.format_ms, 0.0532, "53.2 µs"),
        (formatting.format_ms, 9.213, "9.21 ms"),
        (formatting.format_ms, 13400, "13.4 s"),
        (formatting.format_seconds, 0.412, "0.41 s"),
        (formatting.format_seconds, 13.21, "13.2 s"),
        (formatting.format_seconds, 59.7, "1 min 00 s"),
        (formatting.format_seconds, 125, "2 min 05 s"),
        (formatting.format_seconds, 3780, "1 h 03 min"),
        (formatting.format_count, 4096, "4,096"),
        (formatting.format_count, 25_557_032, "25.6 M"),
        (formatting.format_rate, 2431.2, "2,431 samples/s"),
        (formatting.format_percent, 0.003, "<1 %"),
        (formatting.format_percent, 0.424, "42 %"),
        (formatting.format_within, 0.0041, "±0.4 %"),
        (formatting.format_within, 1.074, "±>100 %"),
        (formatting.format_break_even, 0, "at once"),
        (formatting.format_break_even, 2310, "after 2,310 steps"),
        (formatting.format_break_even, None, "never"),
        (formatting.format_energy, 0.248, "248 mJ"),
        (formatting.format_energy, 1.92, "1.92 J"),
        (formatting.format_times, 58.9, "59x"),
        (formatting.format_times, 1.31, "1.3x"),
    ],
)
def test_numbers(function, value, text) -> None:
    assert function(value) == text


def test_missing_numbers_are_a_dash() -> None:
    functions = (
        formatting.format_energy,
        formatting.format_times,
        formatting.format_bytes,
        formatting.format_ms,
        formatting.format_seconds,
        formatting.format_count,
    )
    assert {function(None) for function in functions} == {"–"}
    assert formatting.format_ratio(None) == "–"
    assert formatting.format_numerics(None) == "–"


def test_numerics_that_are_worse_than_declared_say_so() -> None:
    worse = NumericsResult(Numerics.CHANGED, Numerics.CLOSE, 0.056, "")
    assert formatting.format_numerics(worse) == "changed (5.6e-02), declared close"
    varying = NumericsResult(Numerics.CLOSE, Numerics.EXACT, 1e-6, "", as_baselines=True)
    assert formatting.format_numerics(varying) == "close (1.0e-06)"
    unknown = NumericsResult(Numerics.CLOSE, Numerics.CLOSE, None, "not finite", compared=False)
    assert formatting.format_numerics(unknown) == "not compared, declared close"


def test_a_relative_change() -> None:
    assert formatting.format_change(0.13, 0.25) == "-48 %"
    assert formatting.format_change(1.001, 1.0) == "same"
    assert formatting.format_change(1.0, None) == "–"
    assert formatting.format_change(1.0, 0.0) == "–"
