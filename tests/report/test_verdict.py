"""The verdict on a session: why it found no faster settings, and what a faster step does for the whole loop."""

from dataclasses import replace

import pytest
from sample_session import sample_history

from advisor.experiment import events
from advisor.experiment.control import UNCLEAR_TOGETHER
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.records import Combination, Comparison, LeftOut, Numerics, Outcome
from advisor.records.trials import RoundTimes, StackRecord, TrialResult, Verification
from advisor.report.figures import file_finding
from advisor.report.rows import ranking
from advisor.report.verdict import export_remark, no_result, result_line, verdict, whole_loop
from advisor.tui.views.headline import headline


def session(change=None, *, noise=0.01):
    """A session without a stack whose candidates have this result; without candidates when there is no change."""
    kept = []
    for event in sample_history():
        if isinstance(event, events.StackMeasured | events.CombinationMeasured | events.Ranked):
            continue
        if isinstance(event, events.TrialMeasured) and event.record.candidate.recipe != CONTROL:
            if change is None:
                continue
            record = replace(event.record, result=change(event.record.result), comparison=None)
            kept.append(events.TrialMeasured(record))
        else:
            kept.append(event)
    state = SessionState.of(kept)
    state.measured_stack = None
    state.baseline = replace(state.baseline, half_width=noise, apart=noise / 2)
    return state


def together(count, *, usable=True):
    """A session that tried so many sets of settings, and none of a single one."""
    state, slower = session(), Comparison(0.5, 0.4, 0.6)
    for number in range(count):
        settings = Settings({"precision.autocast": "bfloat16", "data.num_workers": number})
        state.apply(events.RunMeasured(dict(settings), failed(None)))
        if not usable:
            continue
        state.combinations[settings] = Combination(dict(settings), slower, 1)
    return state


def failed(result):
    return TrialResult(Outcome.FAILED, "no kernel")


@pytest.mark.parametrize(
    ("state", "is_finding", "reason"),
    [
        (session(), False, "nothing could be judged: no candidate was tried"),
        (together(2), True, "nothing that was tried is measurably faster"),
        (together(2, usable=False), False, "nothing could be judged: nothing that was tried could be used"),
        (session(failed), False, "nothing could be judged: nothing that was tried could be used"),
        (session(lambda r: r), True, "nothing that was tried is measurably faster"),
    ],
)
def test_a_reason_has_one_sentence(state, is_finding, reason):
    assert no_result(state) == (reason, is_finding)
    assert result_line(state) == reason
    assert reason in verdict(state)
    assert export_remark(state) == f", without settings: {reason}"


def test_intervals_that_leave_everything_open_are_no_finding_about_the_settings():
    state = session(lambda r: r)
    assert not Comparison(1.01, 0.98, 1.04).is_open
    assert not Comparison(3.0, 1.5, 6.0).is_open, "as wide as it is, it is faster"
    state.trials = {name: replace(one, comparison=Comparison(1.2, 0.1, 9.0)) for name, one in state.trials.items()}
    assert not no_result(state)[1]
    assert "it is unclear whether anything helps" in verdict(state)
    state.combinations = together(2).combinations
    assert not no_result(state)[1], "two sets were judged, and no setting alone"
    same = Comparison(1.0, 0.99, 1.01)
    state.trials = {name: replace(record, comparison=same) for name, record in state.trials.items()}
    assert no_result(state)[1], "all were judged"


def test_the_most_promising_setting_may_be_used_and_seems_faster():
    state, wide = session(lambda r: r), Comparison(1.3, 0.8, 2.1)
    one, other = ("autocast=bfloat16", "fused_optimizer=fused")
    state.trials = {name: replace(state.trials[name], comparison=wide) for name in (one, other)}
    assert f"the most promising, {one}, reads 1.30x" in no_result(state)[0]
    record = state.trials[one]
    state.trials[one] = replace(record, numerics=replace(record.numerics, measured=Numerics.CHANGED))
    assert f"the most promising, {other}, reads 1.30x" in no_result(state)[0]
    state.trials[other] = replace(record, comparison=Comparison(0.76, 0.28, 2.07))
    assert no_result(state)[0].startswith("it is unclear whether anything helps: more budget or")


def test_a_faster_combination_that_could_not_be_confirmed_leaves_the_result_open():
    """A busy machine: the combination was timed once, as faster, and was left out as unclear."""
    state, once = together(1), Comparison(6.51, 1.02, 41.4)
    state.combinations = {key: replace(point, comparison=once) for key, point in state.combinations.items()}
    assert no_result(state)[1]
    dropped = dict.fromkeys(next(iter(state.combinations)), UNCLEAR_TOGETHER)
    state.measured_stack = StackRecord(settings={}, result=TrialResult(Outcome.MEASURED), dropped=dropped)
    reason, is_finding = no_result(state)
    assert "the most promising, 2 settings, reads 6.51x (1.02" in reason
    assert not is_finding


def test_candidates_that_help_are_counted_where_no_combination_does():
    state = session(lambda r: r)
    names = ("autocast=bfloat16", "fused_optimizer=fused")
    faster = Comparison(1.5, 1.4, 1.6)
    state.trials = {name: replace(state.trials[name], comparison=faster) for name in names}
    assert result_line(state) == "2 of 2 candidates are measurably faster; none were measured together"
    assert no_result(state)[1]
    state.combinations = together(1).combinations
    assert result_line(state).endswith("nothing that was measured together is measurably faster")


def in_a_loop(times):
    state = SessionState.of(sample_history())
    state.baseline = replace(state.baseline, result=replace(state.baseline.result, whole_rounds=times))
    return state


def test_what_takes_the_rest_of_a_round_is_named_with_its_share():
    state = in_a_loop(RoundTimes(8, 100.0, 20.0, (LeftOut("print(evaluate())", 27, 0.75, True),)))
    said = whole_loop(state)
    assert "20 %" in said
    assert "evaluation, `print(evaluate())` (line 27), takes 75 %" in said
    assert said in verdict(state)
    state.facts = replace(state.facts, workload=replace(state.facts.workload, own_step=True))
    assert "measured is a whole round of your loop: evaluation, `print(evaluate())` (line 27)" in verdict(state)


def test_the_gain_of_the_step_is_that_of_its_share():
    state = in_a_loop(RoundTimes(8, 100.0, 50.0))
    state.measured_stack = replace(state.stack, comparison=replace(state.stack.comparison, speedup=2.0))
    assert "about 1.3x" in whole_loop(state)


@pytest.mark.parametrize(("speedup", "agrees"), [(1.33, True), (0.97, False), (1.97, False)])
def test_a_file_whose_whole_loop_was_timed_is_judged_by_the_share_of_the_step(speedup, agrees):
    state = in_a_loop(RoundTimes(8, 100.0, 50.0))
    state.apply(events.ExportVerified(Verification("train.py", speedup, 100.0, 100.0 / speedup, whole_rounds=True)))
    assert file_finding(state, state.verification)[0] is agrees
    assert f"{speedup:.2f}x for the whole loop (100" in verdict(state)
    assert "50 % of it" in verdict(state)
    assert headline(state, ranking(state)).style == ("$success" if agrees else "$warning")
    state.apply(events.StackMeasured(state.stack))
    assert "exported file" not in verdict(state), "it was of the settings before"


@pytest.mark.parametrize("times", [None, RoundTimes(8, 100.0, 97.0)])
def test_of_a_step_that_is_all_of_a_round_nothing_is_said(times):
    assert whole_loop(in_a_loop(times)) == ""
