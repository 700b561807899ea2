"""Ladders: when the next value is tried, and why the larger ones are not."""

import pytest

from advisor.experiment.judging.judge import Judge
from advisor.experiment.judging.records import trial_record
from advisor.experiment.ladder import end_of_ladder, goes_on
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


def test_a_ladder_goes_on_until_a_value_is_no_better_than_the_one_before(judge):
    first, better, second = (recorded(judge, UP[place], rate) for place, rate in ((0, 120.0), (1, 130.0), (1, 121.0)))
    assert goes_on([first], judge.speed({})[1], leads_down=False)
    assert goes_on([first, better], judge.speed({})[1], leads_down=False)
    assert not goes_on([first, second], judge.speed({})[1], leads_down=False)


def test_a_ladder_that_leads_down_goes_on_while_it_gets_better(judge):
    first = recorded(judge, DOWN[0], 120.0)
    better, worse = (recorded(judge, DOWN[1], rate) for rate in (121.0, 119.0))
    assert goes_on([first, better], judge.speed({})[1], leads_down=True)
    assert not goes_on([first, better], judge.speed({})[1], leads_down=False), "one that leads up has passed its knee"
    assert not goes_on([first, worse], judge.speed({})[1], leads_down=True)


@pytest.mark.parametrize("leads_down", [False, True])
def test_the_next_value_is_tried_after_one_that_ran_out_of_memory_only_where_it_is_smaller(judge, leads_down):
    out_of_memory, failed = ([ended(UP[0], outcome)] for outcome in (Outcome.OUT_OF_MEMORY, Outcome.FAILED))
    assert goes_on(out_of_memory, judge.speed({})[1], leads_down=leads_down) is leads_down
    assert not goes_on(failed, judge.speed({})[1], leads_down=leads_down)


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
