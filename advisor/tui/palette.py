"""The command palette: every action that makes sense now, exports, trials, settings, recommendations, the theme."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from advisor.figures.formatting import format_setting
from advisor.tui.actions import ACTIONS, Action
from advisor.tui.views.advice import AdviceView
from advisor.tui.views.export import ExportView
from advisor.tui.views.trial_rows import BASELINE, SKIPPED_PREFIX, STACK
from advisor.tui.views.trials import TrialsView

if TYPE_CHECKING:
    from advisor.tui.app import AdvisorApp


def commands(app: AdvisorApp) -> Iterable[SystemCommand]:
    """The commands of the app as it is now."""
    active = {active.binding.id: active.node for active in app.base_screen.active_bindings.values()}
    for action in ACTIONS:
        if action.palette and action.id in active:
            run = partial(app.run_action, action.action, active[action.id])
            yield SystemCommand(_title(app, action), action.description, run)
    for item in app.context.exporter.formats():
        title = f"Export {item.title}: {item.default_name}"
        yield SystemCommand(title, item.description, partial(_show_export, app, item.id))
    yield from _things(app)
    yield SystemCommand("Theme", "Choose another theme", app.action_change_theme)
    screenshot = partial(app.set_timer, 0.1, app.deliver_screenshot)
    yield SystemCommand("Screenshot", "Save an SVG of the screen", lambda: (screenshot(), None)[1])
    yield SystemCommand("Quit", "Leave; everything measured is kept", app.action_quit)


def _things(app: AdvisorApp) -> Iterable[SystemCommand]:
    """Commands for recommended and tried candidates, by name; the palette lists them only when typed."""
    state = app.context.state
    for item in state.recommendations:
        recipe = item.recipe
        yield SystemCommand(f"Advice: {item.title} ({recipe})", item.why, partial(_show_advice, app, recipe), False)
    for name, candidate in state.candidates.items():
        setting = format_setting(candidate.key, candidate.value)
        yield SystemCommand(f"Trial: {name} ({setting})", "Its row and its log", partial(_show_trial, app, name), False)
    for name in (BASELINE, STACK):
        yield SystemCommand(f"Trial: {name}", "Its row and its log", partial(_show_trial, app, name), False)
    for recipe, reason in state.skipped.items():
        row = f"{SKIPPED_PREFIX}{recipe}"
        yield SystemCommand(f"Not tried: {recipe}", reason, partial(_show_trial, app, row), False)


def _show_export(app: AdvisorApp, format_id: str) -> None:
    app.base_screen.action_show_view("export")
    if isinstance(app.view, ExportView):
        app.view.choose(format_id)


def _show_advice(app: AdvisorApp, recipe: str) -> None:
    app.base_screen.action_show_view("advice")
    if isinstance(app.view, AdviceView):
        app.view.choose_recipe(recipe)


def _show_trial(app: AdvisorApp, row: str) -> None:
    app.base_screen.action_show_view("trials")
    if isinstance(app.view, TrialsView):
        app.view.choose_row(row)


def _title(app: AdvisorApp, action: Action) -> str:
    return f"Go to {action.label}" if action.does.startswith("show_view") else app.view.palette_title(action.label)
