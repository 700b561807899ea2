"""Accepting and rejecting in the app: what is asked of the session, and what is shown at once."""

import tui_histories as histories
from tui_pilot import choose, driven, press, screen_text, settle, until

from advisor.experiment import events


async def test_several_quick_decisions_are_followed_together_unless_that_is_stopped() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        control.holds_rework = True
        await press(pilot, "down", "r")
        assert "model.memory_format" not in app.context.state.stack_settings, "the export follows at once"
        await press(pilot, "u")
        assert app.context.state.stack == histories.STACK
        await until(pilot, lambda: ("rework",) in control.calls)
        assert app.context.busy_with == "Measuring the combination again"
        await press(pilot, "r", "down", "r", "down", "a")
        assert control.calls.count(("rework",)) == 1, "a round follows the one that runs"
        control.stop()  # as a session does by itself
        await until(pilot, lambda: control.calls.count(("rework",)) == 2)
        await press(pilot, "x")
        await until(pilot, lambda: not app.context.busy_with)
        assert control.calls.count(("rework",)) == 2
        decided = [call[1] for call in control.calls if call[0] == "decide"]
        assert decided == [*["channels_last"] * 3, "compile", "batch_size"]


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
            events.TrialStarted("stack, confirmed", ""),
            events.TrialActivity("stack, confirmed", "warming up"),
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
        assert [
            text for text in ("stack, in turn with the baseline", "warming up", "0:12 left") if text not in shown
        ] == []
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
