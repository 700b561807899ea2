"""The gauges and the toasts of the app."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import tui_histories as histories
from tui_facts import READING
from tui_fakes import make_app
from tui_pilot import LARGE, SMALL, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.experiment.control import RAISE_BUDGET
from advisor.experiment.state import SessionState
from advisor.machine.host import sample_host
from advisor.tui import main_screen
from advisor.tui.leaving import result_of
from advisor.tui.toasts import toast_for
from advisor.tui.views.headline import headline
from advisor.tui.views.overview_facts import note_lines
from advisor.tui.widgets.gauges import GaugeStrip, Reading
from advisor.tui.widgets.status import stack_text


@pytest.mark.parametrize(("size", "told"), [(LARGE, "9.00 GiB of 140 GiB  486 W  51 °C  1980 MHz"), (SMALL, "486 W")])
async def test_gauges_are_shown(size, told) -> None:
    app, _ = make_app(histories.whole(), gauges=True)
    async with app.run_test(size=size) as pilot:
        for view, is_there in (("1", True), ("3", True), ("2", False), ("4", False)):
            await press(pilot, view)
            app.clear_notifications()
            await settle(pilot)
            line = screen_text(app).split("\n")[1]
            assert (told in line and "97 %" in line) is is_there


async def test_without_a_gpu_the_gauges_are_the_hosts() -> None:
    app, _ = make_app(histories.cpu_demo())
    async with app.run_test(size=SMALL) as pilot:
        await settle(pilot)
        app.query_one(GaugeStrip).reading = replace(READING, gpus=())
        await settle(pilot)
        assert "35 %  RAM 12.0 GiB of 128 GiB" in screen_text(app)


def test_the_gauges_of_this_machine_can_be_read() -> None:
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(sample_host)
        while not reading.done():  # keeps a core busy meanwhile
            pass
    host = reading.result()
    assert 0 < host.cpu_percent <= 100, "also at a thread's first reading"
    assert 0 < host.memory_used_bytes <= host.memory_total_bytes


def test_a_stack_whose_figures_stay_is_told_once() -> None:
    state = SessionState.of(histories.whole())
    told = next(event for event in histories.whole()[::-1] if isinstance(event, events.StackMeasured))
    assert toast_for(told, state) is None
    other = replace(told.record, comparison=replace(told.record.comparison, speedup=3.0, ci_low=2.9, ci_high=3.1))
    assert toast_for(events.StackMeasured(other), state).title == "Stack confirmed"


def test_toasts_for_what_matters() -> None:
    state, toasts = SessionState(), []
    for event in histories.whole():
        toasts.append(toast_for(event, state))
        state.apply(event)
    titles = [toast.title for toast in toasts if toast]
    failed = [histories.GRAPH.candidate.name, histories.BATCH_BIG.candidate.name]
    assert titles == ["Baseline measured", *failed, "Stack confirmed", "Done"]


def test_that_a_trial_is_measured_again_is_a_toast_once() -> None:
    state, again = SessionState(), events.Said("compile is measured again: other processes used 0.9 of 2 cores")
    assert toast_for(again, state) is not None
    state.apply(again)
    assert toast_for(again, state) is None
    assert toast_for(events.Said("another remark"), state) is not None


def test_a_toast_or_a_note_on_a_stack_does_not_list_its_settings(state) -> None:
    name = "stack: cpu.threads: 1, model.memory_format: channels_last, precision.autocast: bfloat16"
    said = events.Said(f"{name} is measured again: the clock fell")
    toast = toast_for(said, SessionState())
    state.apply(said)
    assert toast is not None
    assert toast.text == str(note_lines(state, state.goal, 60.0)[-1][1])
    assert toast.text == "stack of 3 is measured again: the clock fell"
    short = toast_for(events.Said(f"there was too little time; {RAISE_BUDGET}"), SessionState())
    assert short.text == "there was too little time; key + gives more time to try it"


def test_a_stack_without_settings_is_no_success() -> None:
    state = SessionState()
    for event in histories.whole():
        state.apply(event)
    assert state.stack is not None
    state.stack = replace(state.stack, settings={})
    assert toast_for(events.StackMeasured(state.stack), state) is None
    assert "together" not in headline(state).plain
    assert stack_text(state, wide=True).plain == ""


def test_a_failure_is_told_with_its_frames_and_without_done() -> None:
    state, toasts = SessionState(), []
    for event in [*histories.failure(), events.SessionFinished(cancelled=False, session_s=3.0)]:
        toasts.append(toast_for(event, state))
        state.apply(event)
    assert toasts == [None, None, None]
    result = result_of(state, "session 1")
    assert result.lines == ()
    assert result.error_lines[-1].endswith("KeyError: '[red]'")
    assert result_of(SessionState(), "1").lines == ("Nothing was measured.",)
    kept = ("Nothing more was measured.", "Open it again with: perf-advisor open 1")
    assert result_of(SessionState(), "1", kept_trials=3).lines == kept


async def test_a_flood_of_events_is_not_a_flood_of_toasts() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        app.clear_notifications()
        for count in range(50):
            app._inbox.put(events.Said(f"remark {count}"))
        app._take_events()
        await settle(pilot)
        assert [note.message for note in app._notifications] == ["remark 47", "remark 48", "remark 49"]


async def test_toasts_that_come_one_by_one_leave_room_for_the_result() -> None:
    """Where more came than fit on the screen, parts of them stayed on its first lines for good."""

    async with driven(histories.whole()) as (pilot, app, _control):
        for count in range(20):
            app.tell(f"remark {count} with words that take two lines of a toast at the least")
            await settle(pilot)
        lines = screen_text(app).split("\n")
        assert re.findall(r"remark \d+", "".join(lines)) == ["remark 18", "remark 19"], "three were cleared for them"
        assert "faster" in lines[3]
        assert not any("remark" in line for line in lines[:18])


def test_trials_that_fail_for_one_reason_have_one_toast() -> None:
    state, told = SessionState(), []
    for event in histories.start():
        state.apply(event)
    for name in ("one", "two"):
        candidate = replace(histories.GRAPH.candidate, recipe=name)
        event = events.TrialMeasured(replace(histories.GRAPH, candidate=candidate))
        told.append(toast_for(event, state))
        state.apply(event)
    assert told[0] is not None
    assert told[1] is None


def test_done_promises_advice_only_where_there_is_some() -> None:
    finished = events.SessionFinished(cancelled=False, session_s=3.0)
    for history, key in ((histories.whole(), "Key 4"), (histories.judged_nothing(), "Key 1")):
        toast = toast_for(finished, SessionState.of(history))
        assert toast is not None
        assert key in toast.text


async def test_gauges_that_come_back_are_read_anew(monkeypatch) -> None:
    monkeypatch.setattr(main_screen, "TICK_S", 3600.0)  # here the seconds pass by themselves
    app, control = make_app(histories.to_trials(), hold=True, gauges=True)
    async with app.run_test(size=SMALL) as pilot:
        await settle(pilot)
        await press(pilot, "2")
        app.base_screen.tick()
        app.query_one(GaugeStrip)._read = lambda: replace(READING, gpus=())
        await press(pilot, "1")
        app.base_screen.tick()
        await settle(pilot)
        assert screen_text(app).splitlines()[1].startswith(" CPU"), "and not the GPU of the reading before"
        control.cancel()


async def test_gauges_that_fail_are_read_no_more() -> None:
    app, control = make_app(histories.to_trials(), hold=True, gauges=True)

    def broken() -> Reading:
        raise OSError("NVML went away [/]")

    app._read_gauges = broken
    async with app.run_test(size=SMALL) as pilot:
        await settle(pilot)
        assert "The gauges cannot be read: OSError: NVML went away [/]" in screen_text(app)
        assert app.query_one(GaugeStrip)._read is None
        control.cancel()
