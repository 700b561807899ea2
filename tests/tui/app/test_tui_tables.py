"""The tables of trials and operators: keys and mouse move the cursor, and a row is drawn only when it changes."""

import pytest
import tui_histories as histories
from textual.content import Content
from tui_pilot import SMALL, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.tui.app import AdvisorApp
from advisor.tui.widgets.row_table import Heading, RowTable

PICKED = histories.LAST.candidate.name


def table_of(app: AdvisorApp) -> RowTable:
    return app.query_one("#trials-table", RowTable)


def in_sight(app: AdvisorApp) -> bool:
    """Whether the row under the cursor is on the screen."""
    table = table_of(app)
    return 1 <= table.cursor + 1 - table.scroll_offset.y < table.size.height


async def test_keys_move_the_cursor_and_keep_it_in_sight() -> None:
    async with driven(histories.whole(), size=SMALL, toasts=False) as (pilot, app, _control):
        await press(pilot, "3", "h", "home")
        table = table_of(app)
        last = len(table.rows) - 1
        places = []
        for key in ("k", "j", "down", "up", "pagedown", "end", "down", "pageup", "home"):
            await press(pilot, key)
            assert in_sight(app), key
            places.append(table.cursor)
        assert places[:4] == [0, 1, 2, 1], "the cursor does not leave the first row upwards"
        assert places[4] > 2, "a whole screen"
        assert places[5:7] == [last, last]
        assert 0 < places[7] < last
        assert places[8] == 0
        assert app.view.selected_key == "baseline"
        assert "your present settings; everything is compared with it" in screen_text(app)
        await press(pilot, "end", *["k"] * (last - 2))
        assert table.scroll_offset.y == 0, "the baseline and the stack come in sight two rows before the cursor"


async def test_a_click_picks_a_row_and_the_running_trial_is_followed_no_more() -> None:
    async with driven(histories.to_trials(), hold=True, toasts=False) as (pilot, app, _control):
        await press(pilot, "3")
        running, table = app.view.selected_key, table_of(app)
        assert running == app.context.state.running
        lines = screen_text(app).splitlines()
        row = next(place for place, line in enumerate(lines) if PICKED[:12] in line)
        await pilot.click(offset=(10, row))
        await settle(pilot)
        assert app.view.selected_key == PICKED
        await pilot.click(offset=(10, table.region.bottom - 1))  # under the last row, or on it
        app.post_event(events.TrialActivity(running, "block 3"))
        await settle(pilot)
        assert app.view.selected_key != running


async def test_a_row_is_drawn_again_only_when_its_own_cells_change(monkeypatch) -> None:
    drawn: list[int] = []
    draw = RowTable._strip_of
    monkeypatch.setattr(
        RowTable, "_strip_of", lambda self, place, style: (drawn.append(place), draw(self, place, style))[1]
    )

    async with driven(histories.to_trials(), hold=True, toasts=False) as (pilot, app, _control):
        await press(pilot, "3", "home", "down")
        running = list(table_of(app).rows).index(app.context.state.running)
        drawn.clear()
        app.post_event(events.TrialActivity(app.context.state.running, "block 3"))
        await settle(pilot)
        assert drawn == [running]
        drawn.clear()
        await press(pilot, "down")
        assert set(drawn) <= {1, 2}, "the two rows that the cursor left and reached"
        await press(pilot, "l")
        before = table_of(app).size.height
        drawn.clear()
        await press(pilot, "l")
        assert table_of(app).size.height != before
        assert len(drawn) < 3, "a table of another height has the same rows"
        app.theme = "nord"
        await settle(pilot)
        assert len(drawn) > 5, "in other colours all are drawn"


async def test_a_cell_that_is_too_long_ends_in_an_ellipsis_and_is_never_markup() -> None:
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await pilot.press("3")
        headings = [Heading("name", "name", 8), Heading("count", "count", 6, number=True)]
        rows = {"a": [Content("[red] and more"), Content("7")], "b": [Content("数数数数数"), Content("12")]}
        table_of(app).show(headings, rows)
        await settle(pilot)
        lines = [table_of(app).render_line(y).text.rstrip() for y in range(4)]
        assert lines[:2] == [" name       count", " [red] a…       7"]
        assert lines[2].startswith(" 数数数")
        assert lines[2].endswith("…      12")
        assert lines[3] == ""
        table_of(app).show(headings, {"a": [Content("[red] and more"), Content("")], "b": rows["b"]})
        assert table_of(app).render_line(1).text.rstrip() == " [red] and more", "over the empty cell"
        table_of(app).go_to("a")
        table_of(app).show(headings, {"b": rows["b"]})
        assert table_of(app).cursor_key == "b", "the row of the cursor is gone"
        table_of(app).show(headings, {})
        assert table_of(app).cursor_key == ""


@pytest.mark.parametrize(
    ("view", "live"),
    [
        ("1", set()),  # before the first block the status alone tells the state
        ("2", set()),
        ("3", {"trials-table", "selection"}),
        ("4", set()),
        ("5", set()),
    ],
)
async def test_what_an_event_does_not_change_is_not_touched(view, live, monkeypatch) -> None:
    """The running trial says what it does now: only the widgets that tell it are drawn or laid out again."""
    from textual.widget import Widget

    touched: set[str] = set()
    refresh = Widget.refresh

    def refreshing(self, *regions, **how):
        touched.add(self.id or type(self).__name__)
        return refresh(self, *regions, **how)

    async with driven(histories.to_trials(), hold=True, toasts=False) as (pilot, app, _control):
        await press(pilot, view)
        monkeypatch.setattr(Widget, "refresh", refreshing)
        for block in range(3):
            app.post_event(events.TrialActivity(app.context.state.running, f"block {block}"))
            await settle(pilot)
        assert "block 2" in screen_text(app)
        assert touched - {"status", "_default"} == live
