"""The line of keys at the bottom: clicks, tooltips, narrow screens; and a key that comes before the views do."""

import pytest
import tui_histories as histories
from tui_pilot import LARGE, driven, press, screen_text, settle

from advisor.tui.main_screen import MainScreen
from advisor.tui.widgets.key_footer import KeyFooter


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


@pytest.mark.parametrize("width", [30, 40, 80])
async def test_help_and_the_end_are_shown_however_narrow_the_screen_is(width) -> None:
    async with driven(histories.whole(), size=(width, 10)) as (pilot, app, _control):
        await press(pilot, "3")
        line = keys_line(app)
        assert "? Help  q Quit" in line
        assert line.rstrip().endswith("palette")


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
