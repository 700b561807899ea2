"""Whole sessions on tiny targets, with real trial processes."""

import pytest
from planted import TINY_TARGET, plant
from real_session import Run, short_trials

from advisor.experiment import events
from advisor.records import Numerics, Verdict

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("real_sessions")]

# Its steps pause three times; recipes take the pauses out, or put something worse in their place.
# One thread: on two cores a second one of OpenMP is at times woken 12 ms late after a pause.
SLOW_TARGET = "import time\n" + TINY_TARGET.replace("Pause(), ", "Pause(), Pause(), Pause(), ").replace(
    "return 1.0 * x", "time.sleep(0.01); return 1.0 * x"
).replace("torch.manual_seed(0)", "torch.manual_seed(0); torch.set_num_threads(1)")
REPLACE_PAUSE = """
from torch import nn
class Instead(nn.Module):
    def forward(self, x):
        return {expression}
workload.model[{place}] = Instead()
"""
USUAL = {
    "quicker": REPLACE_PAUSE.format(place=2, expression="x"),
    "smoother": REPLACE_PAUSE.format(place=3, expression="x"),
    "tidier": REPLACE_PAUSE.format(place=4, expression="x"),
}
WRONG = REPLACE_PAUSE.format(place=2, expression="100 * x")
PLANTED = (*USUAL, "wrong")
STACK = {f"planted.{recipe}": True for recipe in USUAL}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    for recipe_id, apply in {**USUAL, "wrong": WRONG}.items():
        plant(folder / "recipes", recipe_id, apply=apply, usual=recipe_id in USUAL)
    with short_trials():
        return Run(folder, SLOW_TARGET, only=PLANTED, budget_s=40.0).run()


def test_the_stages_come_in_order(finished):
    assert finished.state.failure is None
    stages = [event.stage for event in finished.posted(events.StageStarted)]
    assert stages[:3] == ["baseline", "stack", "instruments"]
    assert set(stages[1:-1]) == {"stack", "instruments", "search", "confirmation", "alone"}
    assert stages[-1] == "done"
    kinds = [type(event) for event in finished.told]
    order = [events.HardwareFound, events.FactsFound, events.BaselineMeasured, events.TrialsPlanned, events.Ranked]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    last = finished.told[-1]
    assert isinstance(last, events.SessionFinished)
    assert not last.cancelled
    assert not finished.posted(events.SessionFailed)


def test_every_other_recipe_is_skipped_with_a_reason(finished):
    state = finished.state
    planned = {candidate.recipe for candidate in state.planned}
    assert planned == set(PLANTED)
    assert planned | set(state.skipped) | {"control"} == set(finished.session.catalog.recipes)
    assert state.skipped["autocast"] == "not named by --only"


def test_every_candidate_ends_in_a_record(finished):
    state = finished.state
    assert set(state.trials) == {candidate.name for candidate in state.planned} | {"control=true"}
    for record in state.trials.values():
        assert record.result.measured or record.result.reason
        if record.result.measured:
            assert record.comparison.ci_low <= record.comparison.speedup <= record.comparison.ci_high
            assert record.alone or record.contribution.ci_low <= record.contribution.speedup


def test_what_helps_is_found_stacked_and_confirmed(finished):
    stack = finished.posted(events.StackMeasured)[-1].record
    assert stack.settings == STACK
    assert stack.confirmed
    assert stack.comparison.verdict is Verdict.FASTER
    assert stack.comparison.speedup > 3
    assert stack.numerics.measured is Numerics.EXACT


def test_what_a_setting_of_the_stack_contributes_is_measured_without_it(finished):
    for recipe in USUAL:
        record = finished.state.trials[f"{recipe}=true"]
        assert record.settings == STACK
        assert record.verdict is record.contribution.verdict is Verdict.FASTER
        assert 2 < record.contribution.speedup < finished.state.stack.comparison.speedup
    assert "combination without quicker" in finished.started


def test_what_makes_the_model_wrong_is_not_stacked_however_fast(finished):
    wrong = finished.state.trials["wrong=true"]
    assert wrong.alone
    assert wrong.verdict is Verdict.FASTER
    assert wrong.numerics.measured is Numerics.CHANGED
    assert wrong.numerics.worse_than_declared
    advice = {item.record.candidate.recipe: item for item in finished.state.recommendations}
    assert advice["wrong"].needs_consent
    assert not advice["wrong"].in_stack
    for recipe in USUAL:
        assert advice[recipe].in_stack
        assert not advice[recipe].needs_consent


def test_a_retry_measures_one_candidate_again(finished):
    before = len(finished.started)
    finished.session.retry("wrong=true")
    assert set(finished.started[before:]) == {"wrong=true"}  # more than once where the machine was disturbed
    assert not finished.posted(events.SessionFailed)
    before = len(finished.told)
    finished.session.retry("no such candidate")
    assert len(finished.told) == before
