"""What the views say of a measurement: clocks, roof, operators, habits, readings, energy, findings, sweep, exports."""

from __future__ import annotations

from dataclasses import replace

import tui_histories as histories
from tui_keys import KEYS
from tui_pilot import SMALL, cells, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.records import Profile
from advisor.tui.widgets.table import Table


def with_profile(told: list[events.Event], profile: Profile) -> list[events.Event]:
    """A history with another profile."""
    facts = [event for event in told if isinstance(event, events.FactsFound)][-1].facts
    return [*told, events.FactsFound(replace(facts, profile=profile))]


# --- profile --------------------------------------------------------------------------------------------------


async def test_operators_are_sorted_by_key_and_by_mouse() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "2")
        table = app.query_one("#operators", Table)
        assert list(cells(table, "device").values())[:2] == ["15.2 ms", "8.90 ms"]
        await press(pilot, "o", "o", "o")
        assert "host▼" in screen_text(app)
        assert list(cells(table, "host").values())[:2] == ["3.40 ms", "2.10 ms"]
        left = sum(column.width + 2 for column in table.shown if column.key != "calls")
        await pilot.click(table, offset=(left + 2, 0))
        await settle(pilot)
        assert "calls▼" in screen_text(app)


async def test_a_narrow_profile_shows_the_operators_or_the_rest() -> None:
    async with driven(histories.timed(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "2")
        assert "convolution_backward" in screen_text(app)
        await press(pilot, "m")
        shown = screen_text(app)
        for text in ("captured step", "15.9 ms", "of 361 TFLOP/s tf32"):
            assert text in shown
        assert "convolution_backward" not in shown
        await press(pilot, "end")
        assert "5.00 GiB" in screen_text(app)
        await press(pilot, "m")
        assert "Operators, per step" in screen_text(app)


async def test_a_broad_profile_shows_all_and_the_key_goes_through_it() -> None:
    async with driven(histories.whole(), size=(120, 60)) as (pilot, app, _control):
        await press(pilot, "2")
        shown = screen_text(app)
        for text in ("Efficiency", "GPU busy", "731 a step", "361 TFLOP/s"):
            assert text in shown, shown
        await press(pilot, "m")
        assert app.focused.id == "sections"
        await press(pilot, "end")
        for text in ("Waits and habits", "train.py:41", "19.4 ms", "[red]"):
            assert text in screen_text(app)
        await press(pilot, "m")
        assert app.focused.id == "operators"


async def test_while_only_the_phases_are_known_nothing_is_said_of_habits() -> None:
    phases = Profile(10.0, {"forward": 4.0, "backward": 6.0}, phases_alone=True)
    async with driven(with_profile(histories.start(), phases), hold=True) as (pilot, app, _control):
        await press(pilot, "2")
        assert "backward" in screen_text(app)
        assert "Waits and habits" not in screen_text(app), "there is no empty panel"
        assert "No coding habit" not in screen_text(app)


async def test_keys_that_need_a_profile_are_hidden_without_one() -> None:
    async with driven(histories.start(), hold=True) as (pilot, app, _control):
        await press(pilot, "2", "o", "t", "m")
        view = app.view
        assert [key.id for key in KEYS if key.view == "profile" and view.can(key.binding.action)] == []


async def test_the_path_of_the_trace_is_copied_or_it_is_told_to_be_gone(tmp_path) -> None:
    trace = tmp_path / "baseline.json.gz"
    trace.write_bytes(b"")
    history = with_profile(histories.whole(), replace(histories.PROFILE, trace_path=str(trace)))
    async with driven(history, size=(200, 50)) as (pilot, app, _control):
        await press(pilot, "2", "t")
        assert app.clipboard == str(trace)
        assert "ui.perfetto.dev" in screen_text(app)
        trace.unlink()
        await press(pilot, "t")
        assert f"The trace is gone: {trace}" in screen_text(app)
