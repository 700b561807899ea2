"""The commands of the palette: every action that makes sense now and every file; settings and trials by their names."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App, SystemCommand

from advisor.figures.formatting import format_setting
from advisor.tui.main_screen import MainScreen
from advisor.tui.views.export import offers


def commands(app: App[Any], screen: MainScreen) -> Iterator[SystemCommand]:
    """The actions that do something now and the files that can be written; once words are typed, what was found."""
    yield from _actions(app, screen)
    for item in offers(screen.context.outputs):
        yield _command(
            f"Export {item.title}: {item.default_name}", item.description, partial(_go_to, screen, "export", item.id)
        )
    yield from _things(screen)
    yield SystemCommand("Theme", "Choose another theme", app.action_change_theme)
    # Textual's own place for it is ~/Downloads, which a server has not got.
    screenshot = partial(app.set_timer, 0.1, partial(app.deliver_screenshot, path=str(Path.cwd())))
    yield SystemCommand("Screenshot", "Save an SVG of the screen here", lambda: (screenshot(), None)[1])
    yield SystemCommand("Quit", "Leave; everything measured is kept", app.action_quit)


def _actions(app: App[Any], screen: MainScreen) -> Iterator[SystemCommand]:
    seen = set[str]()
    for node, binding, _, _ in screen.active_bindings.values():
        if binding.id and not binding.system and binding.id not in seen:
            seen.add(binding.id)
            goes = binding.action.startswith("show_view")
            title = f"Go to {binding.description}" if goes else binding.description
            yield _command(title, binding.tooltip, partial(app.run_action, binding.action, node))


def _things(screen: MainScreen) -> Iterator[SystemCommand]:
    """The settings with their figures, what does not apply, and the trials."""
    ranking = screen.context.ranking
    for row in (each for best in ranking.rows for each in (best, *best.values)):
        title = f"Setting: {row.title} ({format_setting(row.candidate.key, row.candidate.value)})"
        yield _command(title, row.why or row.note, partial(_go_to, screen, "result", row.key), discover=False)
    for name, reason in (entry for fold in ranking.folds for entry in fold.entries):
        yield _command(f"Not tried: {name}", reason, partial(_go_to, screen, "result", name), discover=False)
    for name in screen.context.state.logs:
        yield _command(f"Trial: {name}", "Its row and its log", partial(_go_to, screen, "trials", name), discover=False)


def _command(title: str, about: str, run: Callable[[], Any], *, discover: bool = True) -> SystemCommand:
    """A command whose words are text, never markup: names of people's settings may look like that."""
    return SystemCommand(title.replace("[", "\\["), about.replace("[", "\\["), run, discover)


def _go_to(screen: MainScreen, view_id: str, name: str) -> None:
    """Go to a thing in its view."""
    screen.action_show_view(view_id)
    screen.view.choose(name)
