"""Makes the tests of the app faster: style sheets are parsed once, unseen frames are not drawn, and nothing waits."""

import pytest
import tui_pilot
from textual._compositor import Compositor
from textual.css.stylesheet import Stylesheet


@pytest.fixture(scope="package", autouse=True)
def sheets_parsed_once():
    """Keep the rules of a style sheet, under the theme's variables, from app to app: nothing changes a rule."""
    parse, parsed = Stylesheet._parse_rules, {}

    def parse_once(sheet, *arguments, **options):
        key = frozenset(sheet._variables.items()), arguments, *sorted(options.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *arguments, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True)
def frames_not_drawn(monkeypatch):
    """Draw no frame for a terminal, of which there is none: ``settle`` draws the screen once the app is at rest.

    The time for a frame comes three times as often, for that is what ``settle`` waits for.
    """
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 1 / 180)
    monkeypatch.setattr(Compositor, "render_update", lambda self, **how: self._dirty_regions.clear())


@pytest.fixture(autouse=True)
def many_colours(monkeypatch):
    """The terminal has all colours, whatever the tests run in."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


@pytest.fixture(autouse=True)
def no_idle_sleep(monkeypatch):
    """A key that is pressed is waited for as long as the app is at work, not as long as it could be."""
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", tui_pilot.wait_for_idle)
