"""What the views say of a measurement: clocks, roof, operators, habits, readings, energy, findings, sweep, exports."""

from dataclasses import replace

import tui_histories as histories
from tui_pilot import SMALL, cells, driven, pane_text, press, screen_text, settle

from advisor.experiment import events
from advisor.records import Profile
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane


def with_profile(told: list[events.Event], profile: Profile) -> list[events.Event]:
    """A history with another profile."""
    facts = [event for event in told if isinstance(event, events.FactsFound)][-1].facts
    return [*told, events.FactsFound(replace(facts, profile=profile))]


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
    phases = Profile(10.0, {"forward": 4.0, "backward": 6.0}, phases_alone=True)
    async with driven(with_profile(histories.start(), phases), hold=True) as (pilot, app, _control):
        await press(pilot, "2")
        assert "backward" in screen_text(app)
        assert "Waits and habits" not in screen_text(app), "there is no empty panel"
        assert "No coding habit" not in screen_text(app)


async def test_the_path_of_the_trace_is_told_while_it_is_there(tmp_path) -> None:
    trace = tmp_path / "baseline.json.gz"
    trace.write_bytes(b"")
    history = with_profile(histories.whole(), replace(histories.PROFILE, trace_path=str(trace)))
    async with driven(history, size=(200, 50)) as (pilot, app, _control):
        await press(pilot, "2")
        pane = app.query_one("#sections", TextPane)
        assert str(trace) in "".join(line.strip() for line in pane_text(pane).splitlines())
        trace.unlink()
        app.view.show()
        await settle(pilot)
        assert "Trace" not in pane_text(pane)
