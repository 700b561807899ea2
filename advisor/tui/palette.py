"""The command palette: every action that makes sense now and every file; settings and trials by their names."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App, SystemCommand
from textual.command import Hit, Hits, Matcher, Provider
from textual.content import Content

from advisor.figures.formatting import format_setting
from advisor.tui.main_screen import MainScreen
from advisor.tui.views.export import ExportView
from advisor.tui.views.result import ResultView
from advisor.tui.views.trials import TrialsView


def actions(app: App[Any], screen: MainScreen) -> Iterable[SystemCommand]:
    """The actions that do something now, the files that can be written, and what Textual offers every app."""
    seen = set[str]()
    for node, binding, _, _ in screen.active_bindings.values():
        if binding.id and not binding.system and binding.id not in seen:
            seen.add(binding.id)
            goes = binding.action.startswith("show_view")
            title = f"Go to {binding.description}" if goes else screen.view.palette_title(binding.description)
            run = partial(app.run_action, binding.action, node)
            yield SystemCommand(_literal(title), binding.tooltip, run)
    for item in screen.context.exporter.formats():
        title = f"Export {item.title}: {item.default_name}"
        yield SystemCommand(_literal(title), _literal(item.description), partial(_show_export, screen, item.id))
    yield SystemCommand("Theme", "Choose another theme", app.action_change_theme)
    # Textual's own place for it is ~/Downloads, which a server has not got.
    screenshot = partial(app.set_timer, 0.1, partial(app.deliver_screenshot, path=str(Path.cwd())))
    yield SystemCommand("Screenshot", "Save an SVG of the screen here", lambda: (screenshot(), None)[1])
    yield SystemCommand("Quit", "Leave; everything measured is kept", app.action_quit)


class Thing(NamedTuple):
    """Something that the palette finds: its title, a line about it, and the way to it."""

    title: str
    about: str
    go: Callable[[], None]


class ThingsProvider(Provider):
    """Finds what the session has, once words are typed: settings, trials, recipes that do not apply."""

    async def search(self, query: str) -> Hits:
        """All whose title matches, as text: names of people's settings may look like markup."""
        matcher = self.matcher(query)
        screen = self.app.screen_stack[0]
        assert isinstance(screen, MainScreen)
        for title, about, go in things(screen):
            if (score := matcher.match(title)) > 0:
                yield Hit(score, _highlighted(title, matcher), go, help=_literal(about))


def _literal(text: str) -> str:
    """A text for those places of the palette that take markup."""
    return text.replace("[", "\\[")


def _highlighted(title: str, matcher: Matcher) -> Content:
    _, places = matcher.fuzzy_search.match(matcher.query, title)
    text = Content(title)
    for place in places:
        text = text.stylize(matcher.match_style, place, place + 1)
    return text


def things(screen: MainScreen) -> Iterator[Thing]:
    """The settings with their figures, what does not apply, and the trials."""
    state, ranking = screen.context.state, screen.context.ranking
    for row in (each for best in ranking.rows for each in (best, *best.values)):
        setting = format_setting(row.candidate.key, row.candidate.value)
        yield Thing(f"Setting: {row.title} ({setting})", row.why or row.note, partial(_show_row, screen, row.key))
    for fold in ranking.folds:
        for name, reason in fold.entries:
            yield Thing(f"Not tried: {name}", reason, partial(_show_row, screen, name))
    for name in state.logs:
        yield Thing(f"Trial: {name}", "Its row and its log", partial(_show_trial, screen, name))


def _show_export(screen: MainScreen, format_id: str) -> None:
    screen.action_show_view("export")
    if isinstance(screen.view, ExportView):
        screen.view.choose(format_id)


def _show_row(screen: MainScreen, name: str) -> None:
    screen.action_show_view("result")
    if isinstance(screen.view, ResultView):
        screen.view.choose(name)


def _show_trial(screen: MainScreen, name: str) -> None:
    screen.action_show_view("trials")
    if isinstance(screen.view, TrialsView):
        screen.view.choose(name)
