"""Ladders: when the next value is tried, and why the larger ones are not."""

import pytest

from advisor.experiment.judging.judge import Judge
from advisor.experiment.judging.records import trial_record
from advisor.experiment.ladder import climbs, descends, end_of_ladder, goes_on
from advisor.recipe.catalog import load_catalog
from advisor.records import Block, Candidate, Mode, Outcome, TrialRecord, TrialResult

WORKERS = ("num_workers", "data.num_workers")
UP = tuple(Candidate(*WORKERS, value) for value in (1, 2, 4))
DOWN = tuple(reversed(UP))


def at(rate):
    return TrialResult(Outcome.MEASURED, blocks=(Block(10, 100, 100 / rate),) * 6, losses=(1.0,), batch_size=10)


def ended(candidate, outcome):
    return TrialRecord(candidate, candidate.settings, TrialResult(outcome, "it ended"))


@pytest.fixture(scope="module")
def judge():
    return Judge(load_catalog(), Mode.TRAIN, at(100.0))


def recorded(judge, candidate, rate):
    """The record of a candidate that ran once, at this rate."""
    return trial_record(judge.with_run(candidate.settings, at(rate)), candidate, candidate.settings)


def test_a_ladder_climbs_on_though_its_record_was_judged_again(judge):
    """A repeat of the baseline replaces every record; a value must not be compared with itself then."""
    first, second = recorded(judge, UP[0], 120.0), recorded(judge, UP[1], 121.0)
    records = [recorded(judge.with_run({}, at(100.0)), UP[0], 120.0)]
    assert climbs(first, records, UP, judge.baseline_rate)
    assert not climbs(second, records, UP, judge.baseline_rate)


def test_a_ladder_that_leads_down_goes_on_while_it_gets_better(judge):
    first = recorded(judge, DOWN[0], 120.0)
    better, worse = (recorded(judge, DOWN[1], rate) for rate in (121.0, 119.0))
    assert climbs(better, [first], DOWN, judge.baseline_rate)
    assert not climbs(better, [first], UP, judge.baseline_rate), "one that leads up has passed its knee"
    assert not climbs(worse, [first], DOWN, judge.baseline_rate)


def test_a_ladder_that_leads_down_goes_on_where_memory_ran_out():
    planned = (*DOWN, Candidate(*WORKERS, 0, already_on=True))
    assert descends(ended(DOWN[0], Outcome.OUT_OF_MEMORY), planned)
    assert not descends(ended(DOWN[0], Outcome.FAILED), planned)
    assert not descends(ended(DOWN[2], Outcome.OUT_OF_MEMORY), planned)
    assert not descends(ended(DOWN[1], Outcome.OUT_OF_MEMORY), UP)


@pytest.mark.parametrize("planned", [UP, DOWN])
def test_the_next_value_is_tried_after_one_that_ran_out_of_memory_only_where_it_is_smaller(judge, planned):
    record = ended(planned[0], Outcome.OUT_OF_MEMORY)
    assert goes_on(record, [record], planned, judge.baseline_rate) is (planned is DOWN)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (TrialResult(Outcome.OUT_OF_MEMORY), "num_workers=4 ran out of memory, so larger values would too"),
        (TrialResult(Outcome.FAILED, "it ended"), "num_workers=4 failed: it ended"),
        (at(90.0), "num_workers=4 was no better than the value before it"),
    ],
)
def test_why_a_ladder_has_ended_is_said(result, reason):
    assert end_of_ladder(TrialRecord(UP[2], UP[2].settings, result)) == reason
