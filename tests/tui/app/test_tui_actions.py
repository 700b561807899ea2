"""Every key that is offered does something that can be seen; and copying."""

import base64

import pytest
import tui_histories as histories
from tui_pilot import KEYS, FakeControl, Key, driven, press, screen_text, settle

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
    "result.undo": ["down", "r"],
    "result.accept": [*["down"] * 5],
    "result.reject": ["down"],
    "result.unfold": [*["down"] * 3],
    "result.fold": [*["down"] * 3, "right"],
    "result:trial.retry": ["down"],
    "session.untried": [],
    "session.go_on": ["space"],
    "trials:view.copy": ["home", "down"],
    "trials:trial.retry": ["home", "down"],
}
# These have an app to themselves beside those that decide, leave or ask: they copy, hide other panels, save a file.
ALONE = {"view.copy"}
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
            only_shows = key.id.startswith(("view.", "screen.", "profile.")) and key.id not in ALONE
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


async def test_y_sends_what_is_chosen_to_the_terminals_clipboard_if_anything(monkeypatch) -> None:
    """As OSC 52, which also reaches the clipboard of a machine that one is logged in from."""
    sent: list[str] = []
    monkeypatch.setattr("textual.drivers.headless_driver.HeadlessDriver.write", lambda self, data: sent.append(data))
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "3", "home")
        assert app.view.selected == "baseline"
        assert not app.view.can("copy")
        await press(pilot, "y")
        assert app.clipboard == ""
        assert "copied" not in screen_text(app)
        for keys in (["1"], ["3", "home", "down"], ["4"]):
            await press(pilot, *keys)
            wanted = app.view.text_to_copy()
            await press(pilot, "y")
            (code,) = [data for data in sent if data.startswith("\x1b]52;c;")]
            assert base64.b64decode(code.removeprefix("\x1b]52;c;").rstrip("\x07\x1b\\")).decode() == wanted
            sent.clear()
        assert "precision.autocast: bfloat16" in wanted


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
