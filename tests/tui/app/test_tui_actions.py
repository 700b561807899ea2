"""Every key that is offered does something that can be seen; and copying with the mouse."""

import pytest
import tui_histories as histories
from tui_pilot import KEYS, FakeControl, Key, driven, pane_text, press, screen_text, settle

from advisor.tui.app import AdvisorApp

# Offered only while something is measured again, and with several GPUs: tests of their own press
# them.
ELSEWHERE = {"session.stop", "session.wait", "app.suspend"}
# What has to be done first for a key to have something to do.
BEFORE = {
    "export.overwrite": ["s", "s"],
    "result:view.back": ["enter"],
    "trials:view.back": ["enter"],
    "export:view.back": ["f"],
    "result.accept": [*["down"] * 5],
    "result.reject": ["down"],
    "result.unfold": [*["down"] * 3],
    "result.fold": [*["down"] * 3, "right"],
    "result:trial.retry": ["down"],
    "session.untried": [],
    "session.go_on": ["space"],
    "trials:trial.retry": ["home", "down"],
}
# In a running session; all others after it.
WHILE_RUNNING = {"session.skip", "session.pause", "session.go_on", "session.finish"}


def seen(app: AdvisorApp, control: FakeControl) -> tuple[object, ...]:
    """What a person sees of the app, hears of it elsewhere, or has asked the session for."""
    if not app.is_running or app.return_code is not None:
        return ("left", app.return_code)
    focused = app.focused.id if app.focused else ""
    return (screen_text(app), focused, type(app.screen), app.clipboard, tuple(control.calls))


def groups() -> dict[str, list[Key]]:
    """The keys to press in one app, by a name: those that only show something else of a view, or another view."""
    found: dict[str, list[Key]] = {}
    for key in reversed(KEYS):  # the ones that exchange a panel of the profile come last
        if key.id not in ELSEWHERE:
            only_shows = key.id.startswith(("view.", "screen.", "profile."))
            found.setdefault(f"{key.view or 'all'}-{'shows' if only_shows else key.id}", []).append(key)
    return found


@pytest.mark.parametrize("keys", groups().values(), ids=groups())
async def test_every_key_has_a_consequence_where_it_is_offered(keys: list[Key], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    running = keys[0].id in WHILE_RUNNING
    history = histories.to_trials() if running else histories.with_something_untried()
    async with driven(history, hold=running) as (pilot, app, control):
        for key in keys:
            app.base_screen.action_show_view(key.view or ("result" if key.id != "view.result" else "trials"))
            await settle(pilot)
            await press(pilot, *BEFORE.get(f"{key.view}:{key.id}", BEFORE.get(key.id, [])))
            before = seen(app, control)
            assert key.id in {active.binding.id for active in app.screen.active_bindings.values()}
            await press(pilot, key.binding.key)
            assert seen(app, control) != before, key


async def test_ctrl_c_copies_what_the_mouse_has_selected() -> None:
    """Without a selection it leaves the app."""
    async with driven(histories.whole()) as (pilot, app, _control):
        for view, pane in (("1", "#card"), ("4", "#preview")):
            await press(pilot, view)
            await pilot.mouse_down(pane, offset=(2, 1))
            await pilot.hover(pane, offset=(30, 3))
            await pilot.mouse_up(pane, offset=(30, 3))
            await press(pilot, "ctrl+c")
            shown = [line.rstrip() for line in pane_text(app.query_one(pane)).splitlines()]
            assert app.clipboard.splitlines()[:2] == shown[:2]
        assert app.is_running
        await press(pilot, "escape", "ctrl+c")
        assert app.return_code is not None


async def test_escape_is_left_to_the_terminal_app_where_a_view_has_nothing_to_leave() -> None:
    """Textual takes a selection of text back with it."""
    async with driven(histories.whole()) as (pilot, app, _control):
        for view in "1243":
            await press(pilot, view)
            assert "escape" not in app.screen.active_bindings
        await press(pilot, "enter")
        assert app.screen.active_bindings["escape"].node is app.view
        await press(pilot, "escape")
        assert app.focused is app.query_one("#trials-table")
