"""What the person accepts and rejects steers a session: real ones, on a model whose slow parts recipes take out."""

from __future__ import annotations

import threading
import time

import pytest
from planted import THREE_PAUSES_TARGET, plant, plant_removers
from real_session import Run

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.decisions import Decisions
from advisor.experiment.journal import open_session
from advisor.experiment.state import SessionState
from advisor.export.text_report import verdict
from advisor.records import Outcome, Verdict

pytestmark = pytest.mark.usefixtures("real_sessions")

FIRST, SECOND, THIRD = "planted.first", "planted.second", "planted.third"
ALL = {FIRST: True, SECOND: True, THIRD: True}
NOT_FIRST, NOT_SECOND = ("first", Decision.REJECTED), ("second", Decision.REJECTED)


def session_of(folder, *, only=("first", "second", "third"), third="EXACT", **options):
    plant_removers(folder / "recipes", first="EXACT", second="EXACT", third=third)
    recipes = (str(folder / "recipes"),)
    return Run(folder, THREE_PAUSES_TARGET, only=only, recipe_folders=recipes, **{"budget_s": 150.0, **options})


def when(run, matches, recipe, decision):
    """Have a decision taken, in the session's own thread, once it posts an event that matches."""
    post, taken = run.session._post, []

    def posting(event):
        post(event)
        if not taken and matches(event):
            taken.append(event)
            run.session.decide(recipe, decision)

    run.session._post = posting


def told_of(name):
    """Matches the record of a candidate."""
    return lambda event: isinstance(event, events.TrialMeasured) and event.record.candidate.name == name


def state_after(run, kind):
    """The state just after the first event of a kind, and the events that follow."""
    place = next(place for place, event in enumerate(run.told) if isinstance(event, kind))
    return SessionState.of(run.told[: place + 1]), run.told[place + 1 :]


def started(told):
    return [event.name for event in told if isinstance(event, events.TrialStarted)]


# --- while a session runs -------------------------------------------------------------------------------------


def test_what_is_rejected_leaves_the_stack_and_the_rest_is_measured_next(tmp_path):
    """Once while the stack grows, once when it is confirmed already."""
    run = session_of(tmp_path)
    when(run, lambda event: isinstance(event, events.StackMeasured) and FIRST in event.record.settings, *NOT_FIRST)
    when(run, lambda event: isinstance(event, events.StackMeasured) and event.record.confirmed, *NOT_SECOND)
    run.run()
    assert not run.posted(events.SessionFailed)
    at_once, later = state_after(run, events.Decided)
    assert at_once.stack.pending
    assert at_once.stack.settings == {SECOND: True, THIRD: True}
    assert at_once.stack.comparison is None
    assert started(later)[0] == f"stack: {SECOND}: true, {THIRD}: true"
    assert not any(FIRST in name for name in started(later))
    confirmed = [event.record.settings for event in run.posted(events.StackMeasured) if event.record.confirmed]
    assert confirmed == [{SECOND: True, THIRD: True}, {THIRD: True}]
    assert run.state.stack.settings == {THIRD: True}
    assert run.state.stack.dropped == {FIRST: "you rejected it", SECOND: "you rejected it"}
    assert run.posted(events.StageStarted)[-1].stage == "done"


# So much slower that no noise lets it into the stack.
WAITS = """
import time
workload.model[3].register_forward_pre_hook(lambda *_: time.sleep(0.03))
"""


def test_waiting_candidates_follow_decisions_in_their_turn(tmp_path):
    """One recipe's values are left out while it is rejected; one that needs consent no longer waits once it has it."""
    values = plant(tmp_path / "recipes", "values", candidates="return [1, 2, 3, 4]", apply=WAITS)
    values.write_text(f"{values.read_text()}\n    def accepts(self, value):\n        return value in (1, 2, 3, 4)\n")
    run = session_of(tmp_path, only=("second", "third", "values"), third="CHANGED")
    when(run, lambda event: isinstance(event, events.TrialsPlanned), "third", Decision.ACCEPTED)
    when(run, told_of("values=1"), "values", Decision.REJECTED)
    when(run, told_of("values=3"), "values", None)
    run.run()
    trials = run.state.trials
    for name in ("values=2", "values=3"):
        assert (trials[name].verdict, trials[name].result.reason) == (Verdict.SKIPPED, "you rejected it")
    assert trials["values=1"].result.measured
    assert trials["values=4"].result.measured
    order = started(run.told)
    assert order.index("third=true") < order.index("values=4")
    assert run.state.stack.settings == {SECOND: True, THIRD: True}
    assert run.state.stack.confirmed


# --- after a session ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = session_of(tmp_path_factory.mktemp("finished"), third="CHANGED").run()
    assert run.state.stack.settings == {FIRST: True, SECOND: True}
    return run


@pytest.fixture
def undone(finished):
    """The finished session, with nothing decided; what a test decides is taken back after it."""
    yield finished
    for recipe in list(finished.session.decisions()):
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


def test_rejecting_all_that_is_in_the_stack_leaves_none(undone):
    for recipe in ("first", "second"):
        undone.session.decide(recipe, Decision.REJECTED)
    assert undone.state.stack.result.reason == "you rejected all that was in it"
    undone.session.rework()
    assert undone.state.stack.settings == {}
    assert not undone.state.stack.pending


def in_background(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_for_a_trial(run, since):
    deadline = time.monotonic() + 30
    while not started(run.told[since:]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_decision_ends_a_rework_that_does_not_know_of_it(undone):
    since = len(undone.told)
    undone.session.decide("third", Decision.ACCEPTED)
    undone.session.decide("second", Decision.REJECTED)
    thread = in_background(undone.session.rework)
    wait_for_a_trial(undone, since)
    undone.session.decide("second", None)
    asked = time.monotonic()
    undone.session.decide("first", Decision.REJECTED)
    thread.join(30)
    assert time.monotonic() - asked < 2
    undone.session.rework()
    assert undone.state.stack.settings == {SECOND: True, THIRD: True}
    assert undone.state.stack.confirmed


def test_a_rework_can_be_stopped_and_the_session_stays(undone):
    since = len(undone.told)
    undone.session.decide("second", Decision.REJECTED)
    undone.session.decide("third", Decision.ACCEPTED)
    thread = in_background(undone.session.rework)
    wait_for_a_trial(undone, since)
    undone.session.stop()
    thread.join(30)
    assert not thread.is_alive()
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
    recipes = past.request.recipe_folders
    run = Run(tmp_path, THREE_PAUSES_TARGET, past=past, recipe_folders=recipes, only=past.request.only, budget_s=150.0)
    run.run()
    assert run.state.decisions == {"first": Decision.REJECTED, "third": Decision.ACCEPTED}
    assert run.state.stack.settings == {SECOND: True, THIRD: True}
    assert run.state.stack.confirmed
    assert SessionState.of(open_session(finished.journal.session_id).events).stack == run.state.stack
    for recipe in ("first", "third"):
        finished.session.decide(recipe, None)


def test_nothing_is_measured_any_more_once_the_session_was_cancelled(finished):
    """Last of those that share a session: it is closed after this one."""
    finished.session.cancel()
    since = len(finished.told)
    finished.session.decide("first", Decision.REJECTED)
    finished.session.rework()
    finished.session.retry("second=true")
    assert started(finished.told[since:]) == []


# --- combinations that fail -----------------------------------------------------------------------------------

ALONE_ONLY = """
import torch
if isinstance(workload.model[0], torch.nn.Identity):
    raise MemoryError("no room for both")
workload.model[1] = torch.nn.Identity()
"""
RAISES = "raise RuntimeError('no such trick')"


def test_a_combination_without_memory_is_told_and_the_best_so_far_kept(tmp_path):
    plant_removers(tmp_path / "recipes", first="EXACT")
    plant(tmp_path / "recipes", "greedy", apply=ALONE_ONLY, stage="OPTIMIZER")
    recipes = (str(tmp_path / "recipes"),)
    run = Run(tmp_path, THREE_PAUSES_TARGET, only=("first", "greedy"), recipe_folders=recipes, budget_s=150.0).run()
    stack = run.state.stack
    assert len(stack.settings) == 1
    assert stack.confirmed
    assert stack.comparison.verdict is Verdict.FASTER
    (left_out,) = {FIRST, "planted.greedy"} - set(stack.settings)
    assert stack.dropped[left_out].startswith("together with the others it fails: no room for both")
    assert {record.result.outcome for record in run.state.trials.values()} == {Outcome.MEASURED}


def test_a_model_whose_every_trial_fails_is_told_plainly(tmp_path):
    for recipe in ("one", "two"):
        plant(tmp_path / "recipes", recipe, apply=RAISES)
    recipes = (str(tmp_path / "recipes"),)
    run = Run(tmp_path, THREE_PAUSES_TARGET, only=("one", "two"), recipe_folders=recipes, budget_s=100.0).run()
    assert not run.posted(events.SessionFailed)
    assert [run.state.trials[f"{recipe}=true"].verdict for recipe in ("one", "two")] == [Verdict.FAILED] * 2
    assert run.state.stack.settings == {}
    assert verdict(run.state).startswith("Each of 2 candidates tried for Sequential training")
    assert "failed" in verdict(run.state)


# --- decisions ------------------------------------------------------------------------------------------------


def test_decisions_count_their_changes():
    decisions = Decisions({"a": Decision.ACCEPTED})
    assert not decisions.take("a", Decision.ACCEPTED)
    assert not decisions.take("b", None)
    assert decisions.version == 0
    assert decisions.take("b", Decision.REJECTED)
    assert decisions.take("a", Decision.REJECTED)
    assert list(decisions.all()) == ["b", "a"]
    assert decisions.take("b", None)
    assert (decisions.version, decisions.rejects("a"), decisions.of("b")) == (3, True, None)
