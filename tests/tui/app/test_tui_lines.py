"""The lines around a view: the keys at the bottom, the gauges under the tabs; and a key that comes before the views."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import tui_histories as histories
from sample_session import cpu_history
from tui_pilot import LARGE, SIZES, driven, press, screen_text, settle

from advisor.machine.host import sample_host
from advisor.tui.main_screen import MainScreen
from advisor.tui.widgets.lines import GaugeStrip, KeyFooter


def keys_line(app) -> str:
    return screen_text(app).splitlines()[-1]


async def test_a_click_on_a_key_presses_it_and_keys_that_do_nothing_are_not_there() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "3")
        await pilot.click(KeyFooter, offset=(keys_line(app).index("l Log") + 3, 0))
        await settle(pilot)
        assert app.focused.id == "log"
        await press(pilot, "1", "down")
        assert "u Undo" not in keys_line(app), "nothing was decided"
        await press(pilot, "r")
        assert "u Undo" in keys_line(app)
        await pilot.click(KeyFooter, offset=(keys_line(app).index("? Help"), 0))
        await settle(pilot)
        assert app.screen is not app.base_screen


async def test_a_key_that_a_text_field_takes_is_not_offered_there() -> None:
    async with driven(histories.whole(), size=LARGE) as (pilot, app, _control):
        await press(pilot, "4")
        assert "+ 1 min more" in keys_line(app)
        await press(pilot, "f", "plus")
        assert app.base_screen.focused.value.endswith("+")
        assert "1 min more" not in keys_line(app)
        assert "f1 Help" in keys_line(app)


async def test_a_key_that_comes_before_the_other_views_shows_its_view_then(monkeypatch) -> None:
    """Only the first view is there at the first paint."""
    real = MainScreen.mount_hidden_views

    async def after_a_key(self) -> None:
        self.action_show_view("trials")
        assert self.view.id == "result"
        await real(self)

    monkeypatch.setattr(MainScreen, "mount_hidden_views", after_a_key)
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
        app.query_one(GaugeStrip).show_reading(replace(histories.READING, gpus=()))
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
