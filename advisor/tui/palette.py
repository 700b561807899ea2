"""The command palette: every action that makes sense now, every export, the theme."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from advisor.tui.actions import ACTIONS, Action

if TYPE_CHECKING:
    from advisor.tui.app import AdvisorApp


def commands(app: AdvisorApp) -> Iterable[SystemCommand]:
    """The commands of the app as it is now."""
    for action in ACTIONS:
        if action.palette and _offered(app, action):
            yield SystemCommand(_title(app, action), action.description, partial(app.run_action, action.action))
    for item in app.context.exporter.formats():
        yield SystemCommand(f"Export {item.title}", item.description, partial(app.show_export, item.id))
    yield SystemCommand("Theme", "Choose another theme", app.action_change_theme)
    screenshot = partial(app.set_timer, 0.1, app.deliver_screenshot)
    yield SystemCommand("Screenshot", "Save an SVG of the screen", lambda: (screenshot(), None)[1])
    yield SystemCommand("Quit", "Leave; everything measured is kept", app.action_quit)


def _offered(app: AdvisorApp, action: Action) -> bool:
    if action.steers:
        return app.check_action("steer", (action.steers,)) is True
    if action.app_action:
        return app.check_action(action.app_action.partition("(")[0], ()) is True
    return app.check_action("in_view", (action.name,)) is True


def _title(app: AdvisorApp, action: Action) -> str:
    return f"Go to {action.label}" if action.id.startswith("view.") else app.view.palette_title(action.label)
