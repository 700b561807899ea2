"""What a setting that is on already is worth, and candidates by name. The figures: test_numbers.py."""

# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

import pytest

from advisor.figures import formatting
from advisor.figures.formatting import format_names, format_worth
from advisor.records import Candidate, Comparison, Outcome, TrialRecord, TrialResult


def switched_off(comparison):
    candidate = Candidate("pin_memory", "data.pin_memory", False, already_on=True)
    return TrialRecord(candidate, candidate.settings, TrialResult(Outcome.MEASURED), comparison)


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
    assert format_worth(switched_off(comparison)) == text


@pytest.mark.parametrize(
    ("comparison", "text"),
    [(Comparison(1.2, 0.9, 1.6), "1.20x (0.90–1.60)"), (Comparison(129, 3.31, 5031), "129x (3–5031)")],
)
def test_a_speed_up_stands_with_its_interval(comparison, text):
    assert formatting.format_interval(comparison) == text


def test_an_amount_stands_apart_from_its_unit_also_without_a_prefix():
    assert formatting.format_amount(512, "FLOP") == "512 FLOP"
    assert formatting.format_amount(1.23e9, "FLOP") == "1.23 GFLOP"


def test_values_of_one_recipe_stand_together():
    sizes = [Candidate("batch_size", "data.batch_size", size) for size in (64, 128)]
    workers = Candidate("persistent_workers", "data.persistent_workers", True)
    assert format_names([sizes[0], workers, sizes[1]]) == "batch_size (64, 128), persistent_workers=true"
    assert format_names([]) == ""


def test_control_characters_are_shown():
    assert formatting.printable("a\x1b[31m\x9b2J\x00\tb\nc") == "a\\x1b[31m\\x9b2J\\x00\tb\nc"
    assert formatting.printable("\u202eabc\u2028 \ud800") == "\\u202eabc\\u2028 \\ud800"
    assert formatting.plain("a\r\nb\x9bc ") == "a  b\\x9bc"
    assert formatting.plain("Größe: 3\u00a0µs – 👩‍🚀") == "Größe: 3\u00a0µs – 👩‍🚀"
