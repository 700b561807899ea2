"""The gauges of the app."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import tui_histories as histories
from sample_session import cpu_history
from tui_facts import READING
from tui_fakes import make_app
from tui_pilot import LARGE, SIZES, driven, press, screen_text, settle

from advisor.machine.host import sample_host
from advisor.tui.widgets.gauges import GaugeStrip, Reading


@pytest.mark.parametrize("size", SIZES)
async def test_gauges_are_shown_where_there_is_room(size) -> None:
    async with driven(histories.whole(), gauges=True, size=size) as (pilot, app, _control):
        for view in "1234":
            await press(pilot, view)
            line = screen_text(app).split("\n")[1]
            assert ("9.00 GiB of 140 GiB  486 W  51 °C  1980 MHz" in line) is (size == LARGE)


async def test_without_a_gpu_the_gauges_are_the_hosts() -> None:
    async with driven(cpu_history()) as (pilot, app, _control):
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


async def test_gauges_that_fail_are_read_no_more() -> None:
    app, control = make_app(histories.to_trials(), hold=True, gauges=True)

    def broken() -> Reading:
        raise OSError("NVML went away [/]")

    app._read_gauges = broken
    async with app.run_test(size=LARGE) as pilot:
        await settle(pilot)
        assert "The gauges cannot be read: OSError: NVML went away [/]" in screen_text(app)
        assert app.query_one(GaugeStrip)._read is None
        control.cancel()
