"""Recorded sessions: opened, shown, and the way to go on with them."""

import sys
from dataclasses import replace

import pytest
from on_a_terminal import Terminal
from sample_session import cancelled_history, failed_history, journaled, sample_history, sample_request
from tui_pilot import LARGE, SMALL, notice, press, screen_text, settle

from advisor.cli import main as cli
from advisor.errors import UsageError
from advisor.experiment.events import StageStarted, TrialMeasured, TrialStarted
from advisor.experiment.past.journal import open_session
from advisor.experiment.request import Outputs
from advisor.records import Outcome, TrialResult
from advisor.tui import launch
from advisor.tui.app import AdvisorApp
from advisor.tui.context import closing_words
from advisor.tui.views import VIEWS

pytestmark = pytest.mark.usefixtures("own_state")


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
    assert not app.context.state.finished.cancelled
    assert "interrupted" not in text
    assert f"Recorded: perf-advisor --resume {app.context.session_id} goes on" in text
    assert all(turn not in text for turn in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


@pytest.mark.parametrize("history", [sample_history, cancelled_history, failed_history, list])
async def test_every_view_shows_any_recorded_session(history):
    session_id = journaled(history())
    app = app_over(session_id)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        await pilot.press("escape")
        for view in VIEWS:
            await press(pilot, view.number)
            text = screen_text(app)
            assert isinstance(app.view, view)
            assert session_id in text
            assert ("Recorded, failed: " in text) is (app.context.state.failure is not None)


async def test_of_a_long_target_the_end_is_shown():
    request = sample_request()
    long = replace(request, target=replace(request.target, target="experiments/2026/vision/resnet50.py:build"))
    _, text = await shown(journaled(sample_history(), long), size=SMALL)
    assert text.splitlines()[0].endswith("vision/resnet50.py:build ")


async def test_a_session_that_was_cut_short_measures_nothing():
    session_id = journaled(sample_history()[:-6])
    _, text = await shown(session_id)
    assert f"Recorded, interrupted: perf-advisor --resume {session_id} goes on" in text
    assert "left" not in text.split("\n")[-2]
    _, text = await shown(session_id, size=(40, 10))
    assert text.split("\n")[-2].strip().startswith("● Recorded, interrupted: perf-advis")


async def test_leaving_says_how_to_open_it_again():
    session_id = journaled(sample_history())
    app, _ = await shown(session_id, "q")
    first, *others = closing_words(app.context)
    assert first.startswith("Result: 1.97x (1.96–1.98) with 3 settings, 26.3 → 13.4 ms")  # noqa: RUF001
    assert others == [f"Open it again with: perf-advisor open {session_id}"]
    assert app.return_code == 0


@pytest.mark.parametrize(("keys", "option"), [("down down down a", " --accept batch_size"), ("down r", " --skip ")])
async def test_a_recorded_session_says_how_to_go_on_and_stays_as_it_is(keys, option):
    record_of = next(event.record for event in sample_history() if isinstance(event, TrialMeasured))
    untried = replace(record_of, result=TrialResult(Outcome.SKIPPED, "it needs about 17 s"), comparison=None)
    session_id = journaled([*sample_history(), TrialMeasured(untried)])
    app = app_over(session_id)
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        assert f"1 not tried (out of time). perf-advisor --resume {session_id} tries them" in screen_text(app)
        assert "Try the rest" not in screen_text(app)
        for key in keys.split():
            await press(pilot, key)
        assert f"Go on with: perf-advisor --resume {session_id}{option}" in notice(app)
    assert open_session(session_id).events == app.context.recorded.events


@pytest.mark.parametrize("command", [["open", "abc"], ["demo"]])
def test_a_dumb_terminal_gets_no_app(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("advisor.headless.run.run_headless", lambda *_: 42)
    monkeypatch.setattr("advisor.tui.launch.open_app", lambda *_: pytest.fail("the app was opened"))
    assert cli.main(command) == (2 if command[0] == "open" else 42)
    assert command == ["demo"] or "`perf-advisor report abc` prints the session." in capsys.readouterr().err


def test_open_without_a_name_shows_the_latest_session(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    journaled(sample_history())
    latest = journaled(cancelled_history())
    monkeypatch.setattr(AdvisorApp, "run", lambda app: setattr(app, "_return_code", 0))
    assert cli.main(["open"]) == 0
    assert f"perf-advisor open {latest}" in out.getvalue()


def test_a_session_to_resume_comes_after_the_first_picture(monkeypatch):
    past = open_session(journaled(sample_history()))
    monkeypatch.setattr(launch.Runner, "prepare", lambda: None)  # the fork server would be started for nothing
    assert launch.open_app(sample_request(), Outputs(), past).context.control is None
    with pytest.raises(UsageError, match="recipe folder"):  # before anything is drawn
        launch.open_app(replace(sample_request(), recipe_folders=("missing",)), Outputs(), past)


def test_a_resumed_session_that_was_left_at_once_keeps_its_measurements(monkeypatch, capsys):
    past = open_session(journaled(cancelled_history()))
    monkeypatch.setattr(launch.Runner, "prepare", lambda: None)
    monkeypatch.setattr(AdvisorApp, "run", lambda app: setattr(app, "_return_code", 130))
    assert launch.run(launch.open_app(past.request, Outputs(), past), past) == 130
    told = capsys.readouterr().out
    assert f"kept in session {past.session_id}." in told
    assert f"Go on with: perf-advisor --resume {past.session_id}" in told


def test_a_session_whose_folder_of_recipes_is_named_by_its_journal_only_runs_none_of_them(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    session_id = journaled(sample_history(), replace(sample_request(), recipe_folders=(str(folder),)))
    app = launch.app_of_recorded(open_session(session_id))
    app.context.found(app.context.state)
    assert not (tmp_path / "ran").exists()
    assert app.context.request.recipe_folders == ()
