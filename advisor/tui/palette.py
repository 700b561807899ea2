"""The command palette: every action that makes sense now and every file; recommendations and trials by their names."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from textual.app import SystemCommand
from textual.command import Hit, Hits, Matcher, Provider
from textual.content import Content

from advisor.figures.formatting import format_setting
from advisor.report.pareto import BASELINE, STACK
from advisor.tui.app import AdvisorApp
from advisor.tui.views.advice import AdviceView
from advisor.tui.views.export import ExportView
from advisor.tui.views.trial_rows import SKIPPED_PREFIX
from advisor.tui.views.trials import TrialsView


def actions(app: AdvisorApp) -> Iterable[SystemCommand]:
    """The actions that do something now, the files that can be written, and what Textual offers every app."""
    seen = set[str]()
    for node, binding, _, _ in app.base_screen.active_bindings.values():
        if binding.id and not binding.system and binding.id not in seen:
            seen.add(binding.id)
            goes = binding.action.startswith("show_view")
            title = f"Go to {binding.description}" if goes else app.view.palette_title(binding.description)
            yield SystemCommand(_literal(title), binding.tooltip, partial(app.run_action, binding.action, node))
    for item in app.context.exporter.formats():
        title = f"Export {item.title}: {item.default_name}"
        yield SystemCommand(_literal(title), _literal(item.description), partial(_show_export, app, item.id))
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
    """Finds what the session has, once words are typed: recommendations, trials by setting, skipped recipes."""

    async def search(self, query: str) -> Hits:
        """All whose title matches, as text: names of people's settings may look like markup."""
        matcher = self.matcher(query)
        assert isinstance(self.app, AdvisorApp)
        for title, about, go in things(self.app):
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


def things(app: AdvisorApp) -> Iterator[Thing]:
    """The recommendations, the trials with their settings, and the recipes that were not tried."""
    state = app.context.state
    for item in state.recommendations:
        yield Thing(f"Advice: {item.title} ({item.recipe})", item.why, partial(_show_advice, app, item.recipe))
    for name, candidate in state.candidates.items():
        setting = format_setting(candidate.key, candidate.value)
        yield Thing(f"Trial: {name} ({setting})", "Its row and its log", partial(_show_trial, app, name))
    for name in (BASELINE, STACK):
        yield Thing(f"Trial: {name}", "Its row and its log", partial(_show_trial, app, name))
    for recipe, reason in state.skipped.items():
        yield Thing(f"Not tried: {recipe}", reason, partial(_show_trial, app, f"{SKIPPED_PREFIX}{recipe}"))


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
