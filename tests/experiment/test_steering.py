"""The person's commands to a running session: skip, pause, more time, an early end, and a further search."""

import pytest
from fake_trials import three_removers

from advisor.experiment import events
from advisor.experiment.control import SKIPPED
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.records import Verdict

pytestmark = pytest.mark.usefixtures("own_state")


def starts(matches):
    return lambda event: isinstance(event, events.TrialStarted) and matches(event.name)


def test_a_session_obeys(tmp_path):
    """The session skips its control, pauses, gets more time, ends early, and searches on after its end."""
    run = three_removers(tmp_path)
    session = run.session
    run.when(starts(lambda name: name == "baseline"), session.skip)  # without it there is nothing to go on with
    run.when(lambda event: event == events.TrialActivity("control=true", "warming up"), session.skip)
    run.when(lambda event: isinstance(event, events.StackMeasured), lambda: (session.pause(), session.extend(60.0)))
    run.when(lambda event: event == events.Paused(True), session.go_on)
    run.when(starts(lambda name: name.startswith("combination without")), session.finish)
    run.run()
    last = run.told[-1]
    assert isinstance(last, events.SessionFinished)
    assert not last.cancelled
    assert not run.posted(events.SessionFailed)
    assert run.posted(events.Paused) == [events.Paused(True), events.Paused(False)]
    state = run.state
    control = state.trials["control=true"]
    assert (control.verdict, control.result.reason) == (Verdict.SKIPPED, SKIPPED)
    assert run.started[-1].startswith("combination without"), "nothing is started after the end was asked for"
    assert state.baseline is not None
    assert state.stack.settings
    assert not state.stack.confirmed
    assert state.progress == 1.0
    timed = [event for event in run.posted(events.TrialStarted) if event.name != "baseline"]
    assert all(event.expected_s > 0 for event in timed)
    before = len(run.told)
    session.try_more(40.0)
    later = [event.name for event in run.told[before:] if isinstance(event, events.TrialStarted)]
    assert "combination, in turns" in later
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
