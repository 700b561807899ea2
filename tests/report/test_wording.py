"""Phrases that app, summary and reports share: none claims what was not measured."""

import pytest
from made_up import result_at

from advisor.figures.formatting import format_numerics
from advisor.records import BaselineRecord, Numerics, NumericsResult
from advisor.report.figures import interval_words


@pytest.mark.parametrize(("runs", "words"), [(1, "±6.3 % (1 run)"), (2, "±6.3 % (2 runs)")])
def test_the_interval_of_the_baseline_says_how_many_runs_are_behind_it(runs, words):
    assert interval_words(BaselineRecord(result_at(1.0), 10.0, 3200.0, half_width=0.063, runs=runs)) == words


def test_numerics_that_nobody_could_compare_have_no_class():
    """A baseline whose own loss is NaN: its candidates were listed as close."""
    numerics = NumericsResult(Numerics.CLOSE, Numerics.CLOSE, None, "not finite", compared=False)
    assert format_numerics(numerics) == "not compared, declared close"
