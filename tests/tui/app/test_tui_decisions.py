"""Accepting and rejecting in the app: what is asked of the session, and what is shown at once."""

from __future__ import annotations

import pytest
import tui_histories as histories
from textual.widgets import Static
from tui_fakes import FakeExporter
from tui_pilot import SIZES, driven, press, screen_text, settle, trial_cell, until

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.tui.jobs import Job, Jobs
from advisor.tui.screens import PickScreen
from advisor.tui.widgets.row_table import RowTable

BATCH = histories.BATCH_DOUBLED.candidate.name


# --- after a session ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_a_rejected_recipe_leaves_every_figure_of_the_stack(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, control):
        control.holds_rework = True
        await press(pilot, "4", "down", "r")
        app.clear_notifications()
        await settle(pilot)
        assert "Measuring the stack again" in screen_text(app)
        assert "stack not measured" in screen_text(app)
        assert "2.35x" not in screen_text(app)
        await press(pilot, "1")
        assert "3 settings left in the stack, not measured since you rejected compile" in screen_text(app)
        assert "2.35x" not in screen_text(app)
        await press(pilot, "3")
        assert trial_cell(app, "stack", "name") == "stack of 3"
        assert trial_cell(app, "stack") == "to be measured again"
        control.stop()


@pytest.mark.parametrize(("key", "badge"), [("a", "✓ accepted"), ("r", "✗ rejected")])
async def test_a_decision_is_told_in_full_beside_the_contribution(key, badge) -> None:
    async with driven(histories.contributed()) as (pilot, app, _control):
        await press(pilot, "4", key)
        line = screen_text(app).splitlines()[4]
        assert line[: line.index("││")].rstrip().endswith(badge)


async def test_a_check_box_puts_a_setting_into_the_stack_and_takes_it_out() -> None:
    """Of the list: channels_last is in the stack; batch_size needs consent and has several values."""

    def boxes(app) -> list[str]:
        return [line[2:].strip()[:1] for line in screen_text(app).splitlines() if "☑" in line or "☐" in line]

    async with driven(histories.whole()) as (pilot, app, control):
        await press(pilot, "4")
        names = [item.record.candidate.recipe for item in app.context.state.recommendations]
        stacked = [item.in_stack for item in app.context.state.recommendations]
        assert boxes(app) == ["☑" if there else "☐" for there in stacked]
        await press(pilot, "v")
        assert control.decisions() == {names[0]: Decision.REJECTED}
        assert boxes(app)[0] == "☐"
        assert app.context.state.stack.pending  # its figure is not known any more
        app.view.choose_recipe(names[0])
        await press(pilot, "v")
        assert control.decisions() == {names[0]: Decision.ACCEPTED}
        assert boxes(app)[0] == "☑"
        app.view.choose_recipe("tf32")
        await press(pilot, "v")
        assert control.decisions()["tf32"] is Decision.ACCEPTED
        app.view.choose_recipe("tf32")
        await press(pilot, "v")
        assert "tf32" not in control.decisions(), "a consent that changed nothing yet is taken back"
        app.view.choose_recipe("batch_size")
        await press(pilot, "v")
        assert isinstance(app.screen, PickScreen), "of a ladder one value is chosen"
        assert "Enter picks it" in screen_text(app)


async def test_several_quick_decisions_are_followed_together() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        app.decider.delay_s = 3.0
        await press(pilot, "4", "r", "r", "down", "a")
        assert ("rework",) not in control.calls
        assert "Measuring the stack again" in screen_text(app), "it is about to"
        await until(pilot, lambda: ("rework",) in control.calls)
        await settle(pilot)
        assert control.calls.count(("rework",)) == 1
        assert [call[1] for call in control.calls if call[0] == "decide"] == ["channels_last", "compile", "autocast"]


async def test_a_decision_while_the_stack_is_measured_again_is_followed_by_another_round() -> None:
    async with driven(histories.whole()) as (pilot, _app, control):
        control.holds_rework = True
        await pilot.press("4", "r")
        await until(pilot, lambda: ("rework",) in control.calls)
        await press(pilot, "down", "r")
        assert control.calls.count(("rework",)) == 1
        control.stop()  # as a session does by itself
        await until(pilot, lambda: control.calls.count(("rework",)) == 2)
        control.stop()


async def test_measuring_again_can_be_stopped_and_taken_up() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        app.clear_notifications()
        await settle(pilot)
        assert "x Stop" not in screen_text(app)
        control.holds_rework = True
        await pilot.press("4", "r")
        await until(pilot, lambda: ("rework",) in control.calls)
        await settle(pilot)
        assert "x Stop" in screen_text(app)
        await pilot.press("x")
        await until(pilot, lambda: not app.context.busy_with)
        assert control.calls[-1] == ("stop",)
        assert "Key t on the stack in view 3 measures it" in screen_text(app)
        assert app.context.state.finished == histories.whole()[-1]
        await press(pilot, "3", "home", "down")
        assert app.view.selected_key == "stack"
        await pilot.press("t")
        await until(pilot, lambda: control.calls.count(("rework",)) == 2)
        control.stop()


async def test_what_is_measured_again_is_shown_with_its_progress_and_then_done() -> None:
    """The last trial of a rework is a confirmation, which no record of a candidate ends."""

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
        await pilot.press("4", "a")
        await until(pilot, lambda: app.context.state.running)
        await settle(pilot)
        app.clear_notifications()
        await settle(pilot)
        shown = screen_text(app).splitlines()[-2]
        assert [
            text for text in ("stack, in turn with the baseline", "warming up", "0:12 left") if text not in shown
        ] == []
        control.stop()
        await until(pilot, lambda: not app.context.busy_with)
        await settle(pilot)
        app.clear_notifications()
        await settle(pilot)
        shown = screen_text(app).splitlines()[-2]
        assert "● Done" in shown
        assert "left" not in shown


async def test_stopping_before_it_has_begun_measures_nothing() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        app.decider.delay_s = 3.0
        await pilot.press("4", "r")
        assert app.context.busy_with
        await press(pilot, "x")
        assert ("rework",) not in control.calls
        assert not app.context.busy_with


async def test_a_confirmed_stack_is_not_offered_for_measuring() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        await press(pilot, "3", "home", "down", "t")
        assert app.view.selected_key == "stack"
        assert ("rework",) not in control.calls


async def test_the_export_follows_at_once() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        exporter = app.context.exporter
        assert isinstance(exporter, FakeExporter)
        control.holds_rework = True
        await press(pilot, "4", "r")
        assert "model.memory_format" not in app.context.state.stack_settings
        await press(pilot, "u")
        assert app.context.state.stack == histories.STACK
        control.stop()


# --- while a session runs -------------------------------------------------------------------------------------


async def test_what_waits_can_be_accepted_and_rejected_among_the_trials() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await pilot.press("3")
        app.view.choose_recipe("batch_size")
        table = app.query_one("#trials-table", RowTable)
        table.go_to(BATCH)
        await settle(pilot)
        assert trial_cell(app, BATCH) == "opt-in: press a (changes results)"
        assert "key a lets it in" in screen_text(app)
        await press(pilot, "a")
        assert control.calls[-1] == ("decide", "batch_size", Decision.ACCEPTED, 128)
        assert trial_cell(app, BATCH) == "waiting, you accepted it"
        await press(pilot, "r")
        assert trial_cell(app, BATCH) == "you rejected it"
        assert "key u takes that back" in str(app.query_one("#selection", Static).content)
        await press(pilot, "u")
        assert control.calls[-1] == ("decide", "batch_size", Decision.ACCEPTED, 128), "one after another"
        await press(pilot, "u")
        assert control.calls[-1] == ("decide", "batch_size", None)
        assert trial_cell(app, BATCH) == "opt-in: press a (changes results)"
        assert ("rework",) not in control.calls


async def test_what_cannot_be_decided_has_no_keys() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await pilot.press("3", "home")
        for key in ("baseline", histories.CONTROL.candidate.name, histories.BENCHMARK.candidate.name):
            table = app.query_one("#trials-table", RowTable)
            table.go_to(key)
            await settle(pilot)
            assert [app.view.can(name) for name in ("accept", "reject")] == [False, False], key
            await press(pilot, "a", "r", "u")
        assert [call for call in control.calls if call[0] == "decide"] == []


async def test_what_was_decided_at_the_last_moment_is_followed_after_the_session() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, "4", "r")
        assert ("rework",) not in control.calls
        app.post_event(events.SessionFinished(False, 60.0))
        control.cancel()  # lets its run return
        await until(pilot, lambda: ("rework",) in control.calls)


async def test_a_session_that_was_cancelled_or_failed_measures_nothing_more() -> None:
    async with driven([*histories.to_trials(), events.SessionFinished(True, 60.0)]) as (pilot, _app, control):
        await press(pilot, "4", "r")
        assert ("rework",) not in control.calls


# --- jobs -----------------------------------------------------------------------------------------------------


class Clock:
    """Timers that a test lets go off."""

    def __init__(self) -> None:
        self.timers: list[Clock.Timer] = []

    class Timer:
        def __init__(self, call) -> None:
            self.call, self.stopped = call, False

        def stop(self) -> None:
            self.stopped = True

    def after(self, delay_s, call):
        self.timers.append(self.Timer(call))
        return self.timers[-1]


def test_of_jobs_that_are_wanted_later_the_last_is_run_once() -> None:
    clock, started = Clock(), []
    jobs = Jobs(lambda job: started.append(job.name), clock.after)
    jobs.add_later(Job("a", print), 1.0)
    jobs.add_later(Job("b", print), 1.0)
    assert [timer.stopped for timer in clock.timers] == [True, False]
    assert jobs.busy_with == "b"
    clock.timers[-1].call()
    assert started == ["b"]
    jobs.add_later(Job("c", print), 1.0)
    assert jobs.busy_with == "b"
    jobs.done()
    assert jobs.busy_with == "c"
    jobs.clear()
    assert (jobs.busy_with, clock.timers[-1].stopped) == ("", True)


@pytest.mark.parametrize("size", SIZES)
async def test_the_signs_of_a_narrow_list_are_explained_beside_it(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        await press(pilot, "4")
        narrow = size[0] < 100
        assert ("★ in stack · ! opt-in" in screen_text(app)) is narrow
        assert (")  ! opt-in" in screen_text(app)) is not narrow, "a wide list has the words themselves"
        await press(pilot, *["r"] * len(app.context.state.recommendations))
        app.clear_notifications()
        await settle(pilot)
        assert "★ in stack" not in screen_text(app).splitlines()[-3], "none is in it any more"
