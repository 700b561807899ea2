"""The person's decisions steer a session on fake trials, and the files written about it."""

import pytest
from fake_trials import FakeRun
from msgspec import structs
from planted import pauses_removed, plant, plant_removers
from sample_session import sample_history, sample_request

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.past.journal import open_session
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.python.file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Outcome, Verdict
from advisor.report.figures import settings_to_export

FIRST, SECOND, THIRD = "planted.first", "planted.second", "planted.third"
ALL = {FIRST: True, SECOND: True, THIRD: True}


@pytest.fixture(scope="module", autouse=True)
def _own_state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERF_ADVISOR_STATE", str(tmp_path_factory.mktemp("state")))
        yield


def session_of(folder, *, only=("first", "second", "third"), third="EXACT", speed=pauses_removed, **options):
    plant_removers(folder / "recipes", usual=True, first="EXACT", second="EXACT", third=third)
    return FakeRun(folder, speed, only=only, **{"budget_s": 60.0, **options})


def decided(run, matches, recipe, decision):
    """Take a decision in the session's thread when it posts a matching event."""
    run.when(matches, lambda: run.session.decide(recipe, decision))


def told_of(name):
    """Matches the record of a candidate."""
    return lambda event: isinstance(event, events.TrialMeasured) and event.record.candidate.name == name


def confirmed(event):
    """Matches a stack that was measured in turn with the baseline."""
    return isinstance(event, events.StackMeasured) and event.record.confirmed and bool(event.record.settings)


def started(told):
    return [event.name for event in told if isinstance(event, events.TrialStarted)]


# --- while a session runs -------------------------------------------------------------------------------------


def test_what_is_rejected_leaves_the_stack_and_the_rest_is_measured_next(tmp_path):
    """The decision is taken after the first trial, and again after the confirmation."""
    run = session_of(tmp_path)
    has_first = lambda event: isinstance(event, events.StackMeasured) and FIRST in event.record.settings  # noqa: E731
    decided(run, has_first, "first", Decision.REJECTED)
    decided(run, confirmed, "second", Decision.REJECTED)
    run.run_until(lambda event: confirmed(event) and event.record.settings == {THIRD: True})
    assert not run.posted(events.SessionFailed)
    first = next(place for place, event in enumerate(run.told) if isinstance(event, events.Decided))
    at_once, later = SessionState.of(run.told[: first + 1]), run.told[first + 1 :]
    assert at_once.stack.pending
    assert at_once.stack.settings == {SECOND: True, THIRD: True}
    assert at_once.stack.comparison is None
    assert started(later)[0] == f"combination: {SECOND}: true, {THIRD}: true"
    assert not any(FIRST in name for name in started(later))
    stacks = [tuple(event.record.settings) for event in run.posted(events.StackMeasured) if confirmed(event)]
    assert list(dict.fromkeys(stacks)) == [(SECOND, THIRD), (THIRD,)]
    assert run.state.stack.settings == {THIRD: True}
    assert run.state.stack.dropped == {FIRST: "you rejected it", SECOND: "you rejected it"}


def slowed_by_values(settings):
    return pauses_removed(settings) * (0.5 if "planted.values" in settings else 1.0)


def test_waiting_candidates_follow_decisions_in_their_turn(tmp_path):
    """The values of a rejected recipe wait; a recipe that needs consent is tried first after it gets consent."""
    values = plant(tmp_path / "recipes", "values", candidates="return [1, 2]")
    values.write_text(f"{values.read_text()}\n    def accepts(self, value):\n        return value in (1, 2)\n")
    run = session_of(tmp_path, only=("second", "third", "values"), third="CHANGED", speed=slowed_by_values)
    decided(run, lambda event: isinstance(event, events.TrialsPlanned), "third", Decision.ACCEPTED)
    decided(run, told_of("values=1"), "values", Decision.REJECTED)
    decided(run, confirmed, "values", None)
    run.run_until(told_of("values=2"))
    order = run.order
    assert order[:3] == ["baseline", f"combination: {SECOND}: true", "combination with third=true"]
    assert order.index("values=1") < order.index("combination, in turns") < order.index("values=2")
    assert all(run.state.trials[f"values={value}"].verdict is Verdict.SLOWER for value in (1, 2))
    assert run.state.stack.settings == {SECOND: True, THIRD: True}
    assert run.state.stack.confirmed


# --- after a session ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = session_of(tmp_path_factory.mktemp("finished"), third="CHANGED", budget_s=30.0).run()
    assert run.state.stack.settings == {FIRST: True, SECOND: True}
    return run


@pytest.fixture
def undone(finished):
    """The finished session without decisions; a test's decisions are undone after it."""
    yield finished
    for recipe in list(finished.state.decisions):
        finished.session.decide(recipe, None)
    finished.session.rework()


def test_a_decision_is_followed_and_taking_it_back_restores_what_was_found(undone):
    before = undone.state.stack
    undone.session.decide("first", Decision.REJECTED)
    assert undone.state.stack.pending
    assert undone.state.stack.settings == {SECOND: True}
    undone.session.rework()
    assert undone.state.stack.settings == {SECOND: True}
    assert undone.state.stack.confirmed
    count = len(started(undone.told))
    undone.session.decide("first", None)
    assert undone.state.stack.settings == {SECOND: True}, "until it is followed"
    undone.session.rework()
    assert undone.state.stack == before
    undone.session.rework()
    assert len(started(undone.told)) == count, "what was found under these decisions is not measured again"


def test_accepting_lets_in_what_needs_consent(undone):
    undone.session.decide("third", Decision.ACCEPTED)
    undone.session.rework()
    assert undone.state.stack.settings == ALL
    assert undone.state.stack.confirmed


def at_next_trial(run, act):
    """Call a function while the next trial runs."""
    run.when(lambda event: isinstance(event, events.TrialStarted), act)


def test_a_decision_ends_a_rework_that_does_not_know_of_it(undone):
    since = len(undone.told)
    undone.session.decide("third", Decision.ACCEPTED)
    undone.session.decide("second", Decision.REJECTED)

    def change_ones_mind():
        undone.session.decide("second", None)
        undone.session.decide("first", Decision.REJECTED)

    at_next_trial(undone, change_ones_mind)
    undone.session.rework()
    assert len(started(undone.told[since:])) == 1
    undone.session.rework()
    assert undone.state.stack.settings == {SECOND: True, THIRD: True}
    assert undone.state.stack.confirmed


def test_a_rework_can_be_stopped_and_the_session_stays(undone):
    since = len(undone.told)
    undone.session.decide("second", Decision.REJECTED)
    undone.session.decide("third", Decision.ACCEPTED)
    at_next_trial(undone, undone.session.stop)
    undone.session.rework()
    assert len(started(undone.told[since:])) == 1
    assert (undone.state.running, undone.state.left_s, undone.state.paused) == ("", 0.0, False)
    assert not any(isinstance(event, (events.SessionFinished, events.SessionFailed)) for event in undone.told[since:])
    assert undone.state.stack.settings == {FIRST: True}
    undone.session.stop()  # there is nothing to stop
    undone.session.rework()
    assert undone.state.stack.settings == {FIRST: True, THIRD: True}


def test_decisions_are_in_the_journal_and_a_resumed_session_follows_them(finished, tmp_path):
    finished.session.decide("first", Decision.REJECTED)
    finished.session.decide("third", Decision.ACCEPTED)
    finished.session.decide("second", Decision.REJECTED)
    finished.session.decide("second", None)
    past = open_session(finished.journal.session_id)
    assert SessionState.of(past.events).decisions == {"first": Decision.REJECTED, "third": Decision.ACCEPTED}
    assert SessionState.of(past.events).stack.pending
    options = {name: getattr(past.request, name) for name in ("only", "recipe_folders")}
    run = FakeRun(tmp_path, pauses_removed, past=past, **options).run()
    assert run.state.decisions == {"first": Decision.REJECTED, "third": Decision.ACCEPTED}
    assert run.state.stack.settings == {SECOND: True, THIRD: True}
    assert run.state.stack.confirmed
    assert SessionState.of(open_session(finished.journal.session_id).events).stack == run.state.stack
    for recipe in ("first", "third"):
        finished.session.decide(recipe, None)


def test_nothing_is_measured_any_more_once_the_session_was_cancelled(finished):
    """This is the last test that shares the session: it closes the session."""
    finished.session.cancel()
    since = len(finished.told)
    finished.session.decide("first", Decision.REJECTED)
    finished.session.rework()
    finished.session.retry("second=true")
    assert started(finished.told[since:]) == []


def test_what_took_turns_takes_them_again_when_it_is_tried_again(tmp_path):
    run = session_of(tmp_path, only=("first",)).run()
    assert run.state.stack.confirmed
    since = len(run.told)
    run.session.retry("first=true")
    assert started(run.told[since:]) == ["combination, in turns"]


# --- decisions ------------------------------------------------------------------------------------------------


def test_what_the_command_line_accepts_needs_no_consent_later(tmp_path):
    assert THIRD not in session_of(tmp_path, third="CHANGED").run().state.stack.settings
    accepted = session_of(tmp_path, third="CHANGED", accept=(("third", None),)).run()
    assert accepted.state.stack.settings == ALL
    assert accepted.state.decisions == {"third": Decision.ACCEPTED}


AUTOCAST, OTHERS = "precision.autocast", {"model.memory_format", "optimizer.implementation"}
WHY = "not measured since you rejected autocast"


@pytest.fixture
def measured():
    return SessionState.of(sample_history())


def test_the_shown_stack_follows_a_decision_and_its_undoing(measured):
    before, ranked = measured.stack, measured.recommendations
    assert AUTOCAST in before.settings
    measured.apply(events.Decided("autocast", Decision.REJECTED))
    assert set(measured.stack.settings) == OTHERS
    assert (measured.stack.pending, measured.stack.verdict) == (True, Verdict.SKIPPED)
    assert (measured.stack.result.outcome, measured.stack.result.reason) == (Outcome.SKIPPED, WHY)
    assert measured.stack.dropped[AUTOCAST] == "you rejected it"
    assert "autocast" not in {item.record.candidate.recipe for item in measured.recommendations if item.in_stack}
    measured.apply(events.Decided("autocast", None))
    assert (measured.stack, measured.recommendations) == (before, ranked)


def test_exports_hold_the_rest_and_say_that_it_has_no_figure(measured, tmp_path):
    measured.apply(events.Decided("autocast", Decision.REJECTED))
    assert set(settings_to_export(measured)) == OTHERS
    path = tmp_path / "tuned.yaml"
    written = write_outputs(measured, sample_request(), Outputs(export_path=str(path)), load_catalog())
    assert written.sentences[0] == f"Settings written to {path}: 2 settings, {WHY}."
    assert f"# speed-up: not known: 2 settings, {WHY}\n" in path.read_text(encoding="utf-8")
    assert "precision.autocast" not in python_source(load_catalog(), settings_to_export(measured), Mode.TRAIN)


def test_what_came_into_the_stack_untried_can_be_rejected_too(measured):
    assert not measured.can_decide("tf32")
    history = []
    for event in sample_history():
        if isinstance(event, events.Ranked):
            others = (one for one in event.recommendations if one.record.candidate.recipe != "fused_optimizer")
            history.append(structs.replace(event, recommendations=tuple(others)))
        elif not (isinstance(event, events.TrialMeasured) and event.record.candidate.recipe == "fused_optimizer"):
            history.append(event)
    state = SessionState.of(history)
    assert state.finished is not None
    assert not any(record.candidate.recipe == "fused_optimizer" for record in state.trials.values())
    assert state.can_decide("fused_optimizer")
    state.apply(events.Decided("fused_optimizer", Decision.REJECTED))
    assert set(state.stack.settings) == {AUTOCAST, "model.memory_format"}
    assert state.can_decide("fused_optimizer"), "and be taken back in"
