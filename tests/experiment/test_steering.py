"""What the person asks of a running session: skip, pause, more time, an early end, and more of it afterwards."""

import pytest
from fake_trials import three_removers
from stopped_clock import Clock

from advisor.experiment import events
from advisor.experiment.control import SKIPPED
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.records import Verdict

pytestmark = pytest.mark.usefixtures("own_state")


def test_time_that_stands_still_is_not_spent_and_more_can_be_added():
    clock = Clock()
    budget = Budget(60.0, clock)
    clock.now = 10.0
    with budget.stopped():
        clock.now = 100.0
    assert (budget.spent_s, budget.left_s) == (10.0, 50.0)
    measure_s = budget.measure_s
    budget.extended_s += 60.0
    assert (budget.left_s, budget.measure_s) == (110.0, measure_s)
    budget.restart()
    assert budget.left_s == 60.0
    budget.restart(20.0)
    assert (budget.total_s, budget.left_s) == (20.0, 20.0)


def starts(matches):
    return lambda event: isinstance(event, events.TrialStarted) and matches(event.name)


def measuring(name):
    return lambda event: isinstance(event, events.TrialActivity) and event.name == name and event.text == "warming up"


def test_a_session_obeys(tmp_path):
    """Its control is skipped, it is paused, given more time, ended early, and searches on when it is asked to."""
    run = three_removers(tmp_path)
    session = run.session
    run.when(starts(lambda name: name == "baseline"), session.skip)  # without it there is nothing to go on with
    run.when(measuring("control=true"), session.skip)
    run.when(lambda event: isinstance(event, events.StackMeasured), lambda: (session.pause(), session.extend(60.0)))
    run.when(lambda event: event == events.Paused(True), session.go_on)
    run.when(starts(lambda name: name.startswith("stack without")), session.finish)
    run.run()
    last = run.told[-1]
    assert isinstance(last, events.SessionFinished)
    assert not last.cancelled
    assert not run.posted(events.SessionFailed)
    assert run.posted(events.Paused) == [events.Paused(True), events.Paused(False)]
    state = run.state
    control = state.trials["control=true"]
    assert (control.verdict, control.result.reason) == (Verdict.SKIPPED, SKIPPED)
    assert run.started[-1].startswith("stack without"), "nothing is started after the end was asked for"
    assert state.baseline is not None
    assert state.stack.settings
    assert not state.stack.confirmed
    assert state.progress == 1.0
    timed = [event for event in run.posted(events.TrialStarted) if event.name != "baseline"]
    assert all(event.expected_s > 0 for event in timed)
    before = len(run.told)
    session.try_more(40.0)
    again = [event.name for event in run.told[before:] if isinstance(event, events.TrialStarted)]
    assert "stack, confirmed" in again
    assert run.state.stack.confirmed
    assert sum(isinstance(event, events.SessionFinished) for event in run.told) == 1


def test_going_on_with_a_complete_session_never_spoils_its_record(tmp_path):
    run = three_removers(tmp_path, budget_s=12.0).run()
    run.journal.close()
    past = open_session(run.journal.session_id)
    assert not SessionState.of(past.events).finished.cancelled
    again = three_removers(tmp_path, past=past)
    again.run_until(starts(lambda name: name == "baseline"))
    assert again.told[-1].cancelled, "whoever is there is told so"
    again.journal.close()
    kept = SessionState.of(open_session(run.journal.session_id).events)
    assert kept.failure is None
    assert not kept.finished.cancelled
    assert kept.stack == run.state.stack
