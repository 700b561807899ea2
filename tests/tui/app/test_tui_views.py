"""What views say of a measurement, and the lines around them: keys and gauges; a key that comes before the views."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import tui_histories as histories
from sample_session import cpu_history
from tui_pilot import LARGE, SIZES, SMALL, cells, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.machine.host import sample_host
from advisor.records import Profile
from advisor.tui.main_screen import MainScreen
from advisor.tui.text import trial_name
from advisor.tui.widgets.lines import GaugeStrip, KeyFooter
from advisor.tui.widgets.table import Table


async def test_operators_are_sorted_by_key_and_by_mouse() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "2")
        table = app.query_one("#operators", Table)
        assert list(cells(table, "device").values())[:2] == ["11.6 ms", "5.41 ms"]
        await press(pilot, "o", "o", "o")
        assert "host▼" in screen_text(app)
        assert list(cells(table, "host").values())[:2] == ["3.10 ms", "2.20 ms"]
        left = sum(column.width + 2 for column in table.shown if column.key != "calls")
        await pilot.click(table, offset=(left + 2, 0))
        await settle(pilot)
        assert "calls▼" in screen_text(app)


async def test_a_narrow_profile_shows_the_rest_under_the_operators() -> None:
    async with driven(histories.timed(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "2")
        shown = screen_text(app)
        for text in ("Operators, per step", "convolution_backward", "captured step", "15.9 ms"):
            assert text in shown, shown
        await press(pilot, "tab", "end")
        assert "5.00 GiB" in screen_text(app)


async def test_a_broad_profile_shows_all_and_tab_goes_through_it() -> None:
    async with driven(histories.whole(), size=(120, 60)) as (pilot, app, _control):
        await press(pilot, "2")
        shown = screen_text(app)
        for text in ("Efficiency", "GPU busy", "731 a step", "361 TFLOP/s"):
            assert text in shown, shown
        await press(pilot, "tab")
        assert app.focused.id == "sections"
        await press(pilot, "end")
        for text in ("Waits and habits", "train.py:41", "19.4 ms", "[red]"):
            assert text in screen_text(app)
        await press(pilot, "tab")
        assert app.focused.id == "operators"


async def test_while_only_the_phases_are_known_nothing_is_said_of_habits() -> None:
    phases = Profile(9.0, {"forward": 4.0, "backward": 6.0}, phases_alone=True)
    told = histories.start()
    facts = [event for event in told if isinstance(event, events.FactsFound)][-1].facts
    told.append(events.FactsFound(replace(facts, profile=phases)))
    async with driven(told, hold=True) as (pilot, app, _control):
        await press(pilot, "2")
        for text in ("backward", "add up to 10.0 ms, the step takes 9.00 ms", "What limits", "taken soon after"):
            assert text in screen_text(app), text
        assert "Waits and habits" not in screen_text(app), "there is no empty panel"


def test_combinations_are_told_apart_by_how_they_differ_from_the_first() -> None:
    first, *others = (
        "combination: model.memory_format: channels_last, optimizer.implementation: fused",
        "combination: compile.mode: default, optimizer.implementation: fused",
        "again: model.memory_format: channels_last, optimizer.implementation: foreach",
    )
    assert trial_name(first, 30, first) == "combination of 2"
    names = [trial_name(name, 44, first) for name in others]
    assert names == ["2, with mode=default, without channels_last", "2, with implementation=foreach, again"]
    assert trial_name("combination without fused_optimizer", 24) == "without fused_optimizer"


def keys_line(app) -> str:
    return screen_text(app).splitlines()[-1]


async def test_a_click_on_a_key_presses_it_and_keys_that_do_nothing_are_not_there() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "3")
        await pilot.click(KeyFooter, offset=(keys_line(app).index("l Log") + 3, 0))
        await settle(pilot)
        assert app.focused.id == "log"
        await press(pilot, "1", "down")
        assert "r Reject" in keys_line(app)
        await press(pilot, "r")
        assert "r Reject" not in keys_line(app), "it is rejected"
        await pilot.click(KeyFooter, offset=(keys_line(app).index("? Help"), 0))
        await settle(pilot)
        assert app.screen is not app.base_screen


async def test_a_key_that_a_text_field_takes_is_not_offered_there() -> None:
    async with driven(histories.whole(), size=LARGE) as (pilot, app, _control):
        await press(pilot, "4")
        assert "s Save" in keys_line(app)
        await press(pilot, "f", "s")
        assert app.base_screen.focused.value.endswith("s")
        assert "s Save" not in keys_line(app)
        assert "f1 Help" in keys_line(app)


async def test_a_key_that_comes_before_the_other_views_shows_its_view_then(monkeypatch) -> None:
    """Only the first view is there at the first paint."""
    real = MainScreen.add_hidden_views

    async def after_a_key(self) -> None:
        self.action_show_view("trials")
        assert self.view.id == "result"
        await real(self)

    monkeypatch.setattr(MainScreen, "add_hidden_views", after_a_key)
    async with driven(histories.to_trials(), hold=True) as (_pilot, app, _control):
        assert app.view.id == "trials"
        assert app.focused is not None
        assert "warming up" in screen_text(app)


async def test_gauges_are_shown_where_there_is_room() -> None:
    async with driven(histories.whole(), gauges=True) as (pilot, app, _control):
        for size in SIZES:
            await pilot.resize_terminal(*size)
            for view in "1234":
                await press(pilot, view)
                line = screen_text(app).split("\n")[1]
                assert ("9.00 GiB of 140 GiB  486 W  51 °C  1980 MHz" in line) is (size == LARGE)


async def test_without_a_gpu_the_gauges_are_the_hosts() -> None:
    async with driven(cpu_history()) as (pilot, app, _control):
        app.query_one(GaugeStrip).show_reading((), histories.READING[1])
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
