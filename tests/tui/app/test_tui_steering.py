"""The session obeys: skip, pause, more time, an early end; decisions, what they ask of it, and what is shown."""

import sys

import tui_histories as histories
from on_a_terminal import Terminal
from tui_pilot import choose, driven, press, screen_text, settle, tell, until

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


async def test_leaving_while_something_is_measured_is_asked_about_also_from_another_screen() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "q")
        assert isinstance(app.screen, QuitScreen)
        assert f"{histories.RUNNING} is not finished." in screen_text(app)
        await press(pilot, "enter", "escape")
        assert app.is_running
        assert control.calls == [("run",)], "no other key does anything"
        await tell(pilot, events.TrialStarted("combination: cpu.threads: 1, model.memory_format: channels_last", ""))
        await press(pilot, "q")
        assert "combination of 2 is not finished." in screen_text(app)
        await press(pilot, "n")
        assert app.is_running
        await press(pilot, "question_mark")
        await app.action_quit()
        await settle(pilot)
        assert isinstance(app.screen, QuitScreen)
        assert ("cancel",) not in control.calls
        await press(pilot, "escape")
        assert app.is_running


async def test_the_end_of_a_long_session_is_in_the_title_of_the_terminal(monkeypatch) -> None:
    monkeypatch.setattr(sys, "__stdout__", terminal := Terminal())
    async with driven(histories.whole()):
        assert "perf-advisor: done" in terminal.getvalue()


async def test_several_quick_decisions_are_followed_together_unless_that_is_stopped() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        control.holds_rework = True
        await press(pilot, "down", "r")
        assert "model.memory_format" not in app.context.state.stack_settings, "the export follows at once"
        await until(pilot, lambda: ("rework",) in control.calls)
        assert app.context.busy_with == "Measuring the combination again"
        await press(pilot, "down", "r", "down", "a")
        assert control.calls.count(("rework",)) == 1, "a round follows the one that runs"
        control.stop()  # as a session does by itself
        await until(pilot, lambda: control.calls.count(("rework",)) == 2)
        await press(pilot, "x")
        await until(pilot, lambda: not app.context.busy_with)
        assert control.calls.count(("rework",)) == 2
        decided = [call[1] for call in control.calls if call[0] == "decide"]
        assert decided == ["channels_last", "compile", "batch_size"]


async def test_measuring_again_can_be_stopped_and_taken_up() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        await settle(pilot)
        assert "x Stop" not in screen_text(app)
        control.holds_rework = True
        await pilot.press("down", "r")
        await until(pilot, lambda: ("rework",) in control.calls)
        await settle(pilot)
        assert "x Stop" in screen_text(app)
        await pilot.press("x")
        await until(pilot, lambda: not app.context.busy_with)
        assert control.calls[-1] == ("stop",)
        assert "t measures it again" in screen_text(app)
        assert app.context.state.finished == histories.whole()[-1]
        await choose(pilot, "together")
        await pilot.press("t")
        await until(pilot, lambda: control.calls.count(("rework",)) == 2)
        control.stop()


async def test_what_is_measured_again_is_shown_with_its_progress_and_then_done(monkeypatch) -> None:
    """The last trial of a rework is a confirmation, which no record of a candidate ends."""
    monkeypatch.setattr("advisor.tui.widgets.lines.NOTICE_S", 0.01)

    async with driven(histories.whole()) as (pilot, app, control):
        control.rework_begins_with = [
            events.ProgressMade(0.25, 12.0),
            events.TrialStarted("combination, in turns", ""),
            events.TrialActivity("combination, in turns", "warming up"),
        ]
        control.rework_ends_with = [
            events.StackMeasured(histories.STACK),
            events.Ranked(histories.recommendations()),
            events.StageStarted("done"),
        ]
        control.holds_rework = True
        await pilot.press("down", "r")
        await until(pilot, lambda: app.context.state.running)
        await settle(pilot)
        shown = screen_text(app).splitlines()[-2]
        assert [text for text in ("combination, in turns", "warming up", "0:12 left") if text not in shown] == []
        control.stop()
        await until(pilot, lambda: not app.context.busy_with)
        await settle(pilot)
        shown = screen_text(app).splitlines()[-2]
        assert "● Done" in shown
        assert "left" not in shown


async def test_what_was_decided_at_the_last_moment_is_followed_after_the_session() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "down", "r")
        assert ("rework",) not in control.calls
        app.post_event(events.SessionFinished(False, 60.0))
        control.cancel()  # lets its run return
        await until(pilot, lambda: ("rework",) in control.calls)


async def test_a_session_that_was_cancelled_or_failed_measures_nothing_more() -> None:
    async with driven([*histories.to_trials(), events.SessionFinished(True, 60.0)]) as (pilot, _app, control):
        await press(pilot, "down", "r")
        assert ("rework",) not in control.calls
