"""The share of a script's round that its step takes, and the gain of the whole loop."""

from dataclasses import replace

import pytest
from sample_session import sample_history

from advisor.experiment.gains import whole_loop
from advisor.experiment.state import SessionState
from advisor.records import LeftOut, RoundTimes
from advisor.report.verdict import verdict


def session(times):
    state = SessionState.of(sample_history())
    state.baseline = replace(state.baseline, result=replace(state.baseline.result, whole_rounds=times))
    return state


def test_what_takes_the_rest_of_a_round_is_named_with_its_share():
    state = session(RoundTimes(8, 100.0, 20.0, (LeftOut("print(evaluate())", 27, 0.75, True),)))
    said = whole_loop(state)
    assert "20 %" in said
    assert "evaluation, `print(evaluate())` (line 27), takes 75 %" in said
    assert said in verdict(state)


def test_the_gain_of_the_step_is_that_of_its_share():
    state = session(RoundTimes(8, 100.0, 50.0))
    state.stack = replace(state.stack, comparison=replace(state.stack.comparison, speedup=2.0))
    assert "about 1.3x" in whole_loop(state)


@pytest.mark.parametrize("times", [None, RoundTimes(8, 100.0, 97.0)])
def test_of_a_step_that_is_all_of_a_round_nothing_is_said(times):
    assert whole_loop(session(times)) == ""
