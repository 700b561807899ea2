"""Figures and names as a person reads them."""

# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

import pytest

from advisor.figures import formatting
from advisor.figures.formatting import format_worth
from advisor.records import Candidate, Comparison, Numerics, NumericsResult, Outcome, TrialRecord, TrialResult


@pytest.mark.parametrize(
    ("comparison", "text"),
    [
        (Comparison(0.974, 0.970, 0.978), "already on, worth 2.7 % (2.2–3.1)"),
        (Comparison(0.5, 0.49, 0.51), "already on, worth 100 % (96–104)"),
        (Comparison(1.05, 1.04, 1.06), "already on, but costs 5.0 % (4.0–6.0)"),
        (Comparison(1.001, 0.997, 1.005), "already on, worth nothing"),
        (None, "already on"),
    ],
)
def test_what_is_on_already_is_worth_what_its_absence_costs(comparison, text):
    candidate = Candidate("pin_memory", "data.pin_memory", False, already_on=True)
    assert format_worth(TrialRecord(candidate, candidate.settings, TrialResult(Outcome.MEASURED), comparison)) == text


@pytest.mark.parametrize(
    ("comparison", "text"),
    [(Comparison(1.2, 0.9, 1.6), "1.20x (0.90–1.60)"), (Comparison(129, 3.31, 5031), "129x (3–5031)")],
)
def test_a_speed_up_stands_with_its_interval(comparison, text):
    assert formatting.format_interval(comparison) == text


def test_control_characters_are_shown():
    assert formatting.printable("a\x1b[31m\x9b2J\x00\tb\nc") == "a\\x1b[31m\\x9b2J\\x00\tb\nc"
    assert formatting.printable("\u202eabc\u2028 \ud800") == "\\u202eabc\\u2028 \\ud800"
    assert formatting.plain("a\r\nb\x9bc ") == "a  b\\x9bc"
    assert formatting.plain("Größe: 3\u00a0µs – 👩‍🚀") == "Größe: 3\u00a0µs – 👩‍🚀"


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formatting.format_bytes, 1023.9 * 1024, "1.00 MiB"),
        (formatting.format_bytes, 9.1e9, "8.48 GiB"),
        (formatting.format_ms, 0.0532, "53.2 µs"),
        (formatting.format_ms, 13400, "13.4 s"),
        (formatting.format_seconds, 0.412, "0.41 s"),
        (formatting.format_seconds, 59.7, "1 min 00 s"),
        (formatting.format_seconds, 3780, "1 h 03 min"),
        (formatting.format_count, 4096, "4,096"),
        (formatting.format_count, 25_557_032, "25.6 M"),
        (formatting.format_rate, 2431.2, "2,431 samples/s"),
        (formatting.format_percent, 0.003, "<1 %"),
        (formatting.format_within, 0.0041, "±0.4 %"),
        (formatting.format_within, 1.074, "±>100 %"),
        (formatting.format_break_even, 0, "at once"),
        (formatting.format_break_even, None, "never"),
        (formatting.format_energy, 0.248, "248 mJ"),
        (formatting.format_times, 58.9, "59x"),
        (lambda amount: formatting.format_amount(amount, "FLOP"), 512, "512 FLOP"),
        (lambda amount: formatting.format_amount(amount, "FLOP"), 1.23e9, "1.23 GFLOP"),
    ],
)
def test_numbers(function, value, text):
    assert function(value) == text


def test_missing_numbers_are_a_dash():
    names = ("energy", "bytes", "ms", "seconds", "count")
    assert {getattr(formatting, f"format_{name}")(None) for name in names} == {"–"}
    assert formatting.format_ratio(None) == "–"


def test_numerics_that_are_worse_than_declared_say_so():
    worse = NumericsResult(Numerics.CHANGED, Numerics.CLOSE, 0.056, "")
    assert formatting.format_numerics(worse) == "changed (5.6e-02), declared close"
    varying = NumericsResult(Numerics.CLOSE, Numerics.EXACT, 1e-6, "", as_baselines=True)
    assert formatting.format_numerics(varying) == "close (1.0e-06)"


def test_a_relative_change():
    changes = [(0.13, 0.25), (1.001, 1.0), (1.0, None), (1.0, 0.0)]
    assert [formatting.format_change(*change) for change in changes] == ["-48 %", "same", "–", "–"]
