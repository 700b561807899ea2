"""Recorded sessions: opened, decided about, continued, picked from the list, compared."""

import io
import sys
from dataclasses import replace

import pytest
from sample_session import cancelled_history, failed_history, journaled, sample_history, sample_request
from tui_pilot import LARGE, SMALL, notice, press, screen_text, settle, until

from advisor.cli import main as cli
from advisor.errors import UsageError
from advisor.experiment.control import Decision
from advisor.experiment.events import StageStarted, TrialMeasured, TrialStarted
from advisor.experiment.past.journal import open_session
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.records import Outcome, TrialResult
from advisor.tui import launch
from advisor.tui.app import AdvisorApp
from advisor.tui.leaving import Then, closing_words
from advisor.tui.sessions import SessionPicker
from advisor.tui.views import VIEWS


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))


def app_over(session_id):
    app = launch.app_of_recorded(open_session(session_id))
    app.animation_level = "none"
    return app


async def shown(session_id, *keys, size=LARGE):
    app = app_over(session_id)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await press(pilot, *keys)
        text = screen_text(app)
    return app, text


async def test_a_finished_session_that_was_left_while_it_went_on_is_still_finished():
    """``--resume`` and ``q``: what the second run had begun is not running any more."""
    history = [*sample_history(), StageStarted("search"), TrialStarted("again: tf32=high", "/nowhere/x.log")]
    app, text = await shown(journaled(history))
    assert app.context.state.running == ""
    assert app.context.state.finished is not None
    assert not app.context.state.finished.cancelled
    assert "interrupted" not in text
    assert f"Recorded: c continues it  {app.context.recorded.session_id}" in text
    assert all(turn not in text for turn in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


@pytest.mark.parametrize("history", [sample_history, cancelled_history, failed_history, list])
async def test_every_view_shows_any_recorded_session(history):
    session_id = journaled(history())
    app = app_over(session_id)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        await pilot.press("escape")
        for view in VIEWS:
            await press(pilot, view.key)
            text = screen_text(app)
            assert app.view.id == view.id
            assert session_id in text
            assert ("failed: c runs it again" in text) is (app.context.state.failure is not None)
            assert "recorded" in text.split("\n", 1)[0]


async def test_of_a_long_target_the_end_is_shown_and_that_the_session_is_recorded():
    request = sample_request()
    long = replace(request, target=replace(request.target, target="experiments/2026/vision/resnet50.py:build"))
    _, text = await shown(journaled(sample_history(), long), size=SMALL)
    assert text.splitlines()[0].endswith("vision/resnet50.py:build  recorded ")


async def test_a_session_that_was_cut_short_measures_nothing():
    session_id = journaled(sample_history()[:-6])
    _, text = await shown(session_id)
    assert f"Recorded, interrupted: c continues it  {session_id}" in text
    assert "left" not in text.split("\n")[-2]
    _, text = await shown(session_id, size=(40, 10))
    assert text.split("\n")[-2].strip().startswith("● Recorded, interrupted: c continue")


async def test_the_only_session_has_no_other_to_open_and_leaving_says_how_to_open_it_again():
    session_id = journaled(sample_history())
    _, text = await shown(session_id, "O")
    assert "There is no other recorded session." in text
    app, _ = await shown(session_id, "q")
    first, *others = closing_words(app.context)
    assert first.startswith("Result: 1.97x (1.96–1.98) with 3 settings, 26.3 → 13.4 ms")  # noqa: RUF001
    assert others == [f"Open it again with: perf-advisor open {session_id}"]
    assert (app.return_code, app.return_value) == (0, None)


@pytest.mark.parametrize(("key", "budget_s"), [("c", None), ("plus", 60.0), ("R", None)])
async def test_a_recorded_session_is_continued_also_with_what_it_had_no_time_for(key, budget_s):
    record_of = next(event.record for event in sample_history() if isinstance(event, TrialMeasured))
    untried = replace(record_of, result=TrialResult(Outcome.SKIPPED, "it needs about 17 s"), comparison=None)
    session_id = journaled([*sample_history(), TrialMeasured(untried)])
    app = app_over(session_id)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        assert "R Try the rest" in screen_text(app)
        await press(pilot, key)
    assert app.return_value == Then(session_id, measures=True, budget_s=budget_s)


async def test_a_decision_is_kept_with_the_session():
    session_id = journaled(sample_history())
    app = app_over(session_id)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        await press(pilot, "down", "r")
        recipe = list(app.context.state.decisions)[-1]
        assert f"{recipe} is left out; key c measures the combination." in notice(app)
        assert app.context.state.stack.pending
    state = SessionState.of(open_session(session_id).events)
    assert state.decisions[recipe] is Decision.REJECTED


async def test_a_session_that_another_process_writes_takes_no_decision(monkeypatch):
    session_id = journaled(sample_history())

    def held(path):
        raise UsageError(f"the session {path.stem} is being written by another process, 7.", "Wait for its end.")

    monkeypatch.setattr("advisor.experiment.past.journal._locked", held)
    app, text = await shown(session_id, "down", "r")
    assert "is being written by another process" in text
    assert app.context.state.decisions == SessionState.of(sample_history()).decisions


# --- the list -------------------------------------------------------------------------------------------------


async def test_another_session_is_opened_by_key():
    first = journaled(sample_history())
    second = journaled(cancelled_history())
    app = app_over(second)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        await press(pilot, "O")
        text = screen_text(app)
        assert first in text
        assert "Enter picks the session" in text
        assert sample_request().target.target[:20] in text
        await press(pilot, "enter")
    assert app.return_value == Then(first)


async def test_the_list_is_filtered():
    long = replace(sample_request().target, target="/data/experiments/vision/resnet50.py:build")
    journaled(cancelled_history(), replace(sample_request(), target=long))
    journaled(sample_history())
    other = journaled(
        cancelled_history(), replace(sample_request(), target=replace(sample_request().target, target="demo"))
    )
    picker = SessionPicker()
    async with picker.run_test(size=(100, 20)) as pilot:
        await until(pilot, lambda: sample_request().target.command in screen_text(picker))
        assert long.command in screen_text(picker)
        await pilot.press("slash", *"demo", "enter")
        await until(pilot, lambda: sample_request().target.command not in screen_text(picker))
        assert other in screen_text(picker)
        await pilot.press("slash", *"zz", "enter", "j", "enter", "k")
        await until(pilot, lambda: other not in screen_text(picker))
        await pilot.press("slash", "backspace", "backspace", "enter")
        await until(pilot, lambda: other in screen_text(picker))
        await pilot.press("enter")
    assert picker.return_value == other


async def test_nothing_to_pick_is_a_sentence():
    picker = SessionPicker()
    async with picker.run_test(size=(100, 20)) as pilot:
        await until(pilot, lambda: "There is no recorded session yet" in screen_text(picker))
        lines = screen_text(picker).splitlines()
        assert "There is no recorded session yet" in lines[3], "no empty table stands above it"
        await pilot.press("escape")
    assert picker.return_value is None


# --- the command line -----------------------------------------------------------------------------------------


def test_open_without_a_terminal_says_what_to_do(capsys):
    assert cli.main(["open", "abc"]) == 2
    assert "`perf-advisor report abc` prints the session." in capsys.readouterr().err


@pytest.mark.parametrize("command", [["open", "abc"], ["demo"]])
def test_a_dumb_terminal_gets_no_app(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("advisor.headless.run.run_headless", lambda *_: 42)
    monkeypatch.setattr("advisor.tui.launch.run_app", lambda *_: pytest.fail("the app was opened"))
    assert cli.main(command) == (2 if command[0] == "open" else 42)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_was_chosen_in_the_app_is_shown_next(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    first, second = journaled(sample_history()), journaled(cancelled_history())
    left = {second: Then(first), first: None}
    ran = []

    def run(app):
        session_id = app.context.recorded.session_id
        ran.append(session_id)
        app._return_code = 0
        return left[session_id]

    monkeypatch.setattr(AdvisorApp, "run", run)
    assert cli.main(["open", second]) == 0
    assert ran == [second, first]
    assert f"perf-advisor open {first}" in out.getvalue()


def test_continuing_takes_the_session_up_with_its_budget(monkeypatch):
    session_id = journaled(sample_history())
    asked = []
    monkeypatch.setattr(launch, "run_app", lambda request, outputs, past: asked.append((request.budget_s, past)) or 0)
    launch._go_on_with(Then(session_id, measures=True, budget_s=60.0))
    launch._go_on_with(Then(session_id, measures=True))
    assert [budget for budget, _ in asked] == [60.0, sample_request().budget_s]
    assert {past.session_id for _, past in asked} == {session_id}


def test_continuing_says_how_many_trials_are_kept(monkeypatch):
    past = open_session(journaled(sample_history()))
    monkeypatch.setattr(launch.Runner, "prepare", lambda: None)  # the fork server would be started for nothing
    app = launch.open_app(sample_request(), Outputs(), past)
    assert app.context.kept_trials == len(SessionState.of(past.events).trials) > 3
    assert app.context.control is None  # it comes with the whole search, which the first picture does not wait for
    with pytest.raises(UsageError, match="recipe folder"):  # before anything is drawn
        launch.open_app(replace(sample_request(), recipe_folders=("missing",)), Outputs(), past)


def test_a_session_whose_folder_of_recipes_is_named_by_its_journal_only_runs_none_of_them(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    session_id = journaled(sample_history(), replace(sample_request(), recipe_folders=(str(folder),)))
    app = launch.app_of_recorded(open_session(session_id))
    app._load_catalog()
    assert not (tmp_path / "ran").exists()
    assert app.context.request.recipe_folders == ()


def test_a_session_that_kept_no_secrets_is_not_continued_without_them(monkeypatch):
    target = replace(sample_request().target, arguments=("--token", "hf_abcdefghijklmnop"))
    session_id = journaled(sample_history(), replace(sample_request(), target=target))
    monkeypatch.setattr(launch, "run_app", lambda *_: pytest.fail("it was run"))
    with pytest.raises(UsageError, match="held secrets"):
        launch._go_on_with(Then(session_id, measures=True))
