"""The session obeys: skip, pause, more time, what was skipped, an early end; and what is asked before leaving."""

import asyncio
import io
import sys

import tui_histories as histories
from tui_pilot import driven, press, screen_text, settle, tell

from advisor.experiment import events
from advisor.records import Outcome
from advisor.tui.screens import QuitScreen


async def test_a_running_session_is_steered_by_keys() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "x")
        assert control.calls[-1] == ("skip",)
        assert f"Skipped: {histories.RUNNING}." in screen_text(app)

        await press(pilot, "plus")
        assert control.calls[-1] == ("extend", 60.0)
        assert "+1 minute." in screen_text(app)

        await press(pilot, "space")
        assert control.calls[-1] == ("pause",)
        assert "Paused after the running trial. Space goes on." in screen_text(app).splitlines()[-2]
        app.post_event(events.Paused(True))
        await pilot.press("space")
        await tell(pilot, events.Paused(False))
        assert control.calls[-1] == ("go_on",)
        assert "Measuring goes on" in screen_text(app).splitlines()[-2]
        await press(pilot, "R")
        assert control.calls[-1] == ("go_on",), "what was skipped for time is known at the end only"
        await press(pilot, "E")
        assert control.calls[-1] == ("finish",)
        assert "Ending now with what was measured." in screen_text(app)


async def test_between_two_trials_the_keys_stay_where_they_are() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        before = screen_text(app).splitlines()[-1]
        await tell(pilot, events.TrialEnded(histories.RUNNING, Outcome.MEASURED, "", 40.0, 2**30))
        assert screen_text(app).splitlines()[-1] == before
        await press(pilot, "x")
        assert ("skip",) not in control.calls
        assert "Nothing runs just now" in screen_text(app)


async def test_before_the_baseline_nothing_is_skipped_and_the_budget_can_grow() -> None:
    async with driven(histories.start(), hold=True) as (pilot, app, control):
        await press(pilot, "x", "E")
        assert control.calls == [("run",)]
        assert "5:00 left" in screen_text(app)
        await press(pilot, "plus")
        assert control.calls[-1] == ("extend", 60.0)
        assert "6:00 left" in screen_text(app)


async def test_after_a_session_what_it_had_no_time_for_is_tried() -> None:
    async with driven(histories.with_something_untried()) as (pilot, app, control):
        assert "R Try the rest" in screen_text(app)
        await press(pilot, "R")
        assert control.calls[-1] == ("try_more", None)
        assert "Trying 1 more setting. x stops it." in screen_text(app)
        await press(pilot, "plus")
        assert control.calls[-1] == ("try_more", 60.0)
        count = len(control.calls)
        await press(pilot, "x", "space", "E")
        assert len(control.calls) == count, "nothing runs, so there is nothing to skip, to pause or to end"


async def test_leaving_while_something_is_measured_is_asked_about() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "q")
        assert isinstance(app.screen, QuitScreen)
        assert f"{histories.RUNNING} is not finished." in screen_text(app)
        await press(pilot, "enter", "escape")
        assert app.is_running
        assert control.calls == [("run",)], "no other key does anything"
        await tell(pilot, events.TrialStarted("stack: cpu.threads: 1, model.memory_format: channels_last", ""))
        await press(pilot, "q")
        assert "stack of 2 is not finished." in screen_text(app)
        await press(pilot, "e")
        assert control.calls[-1] == ("finish",)
        assert app.is_running
        await asyncio.sleep(0)


async def test_leaving_from_another_screen_is_asked_about_too() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "question_mark")
        await app.action_quit()
        await settle(pilot)
        assert isinstance(app.screen, QuitScreen)
        assert ("cancel",) not in control.calls
        await press(pilot, "escape")
        assert app.is_running


async def test_the_end_of_a_long_session_is_in_the_title_of_the_terminal(monkeypatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "__stdout__", terminal)
    async with driven(histories.whole()):
        assert "perf-advisor: done" in terminal.getvalue()
