"""The app's own themes: dark, light, and one of sixteen colours; the palette offers all of Textual's others."""

import os
import tomllib
from pathlib import Path

from rich.theme import Theme as RichTheme
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from advisor.files.folders import read_record, write_record
from advisor.tui.text import BROAD

# The colours of a report's sections, by their names there.
_REPORT = {"good": "success", "bad": "error", "warning": "warning", "name": "secondary"}

# The file of the state folder that has the name of the theme that the person chose last.
_REMEMBERED = "theme.json"
# The file is no YAML, which takes long to load.
_COLOURS = tomllib.loads(Path(__file__).with_name("themes.toml").read_text(encoding="utf-8"))


class ThemedApp(App[None]):
    """An app in the theme that TEXTUAL_THEME names, that the person chose last, or ours for the terminal's colours."""

    CSS_PATH = "app.tcss"
    TITLE = "perf-advisor"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (BROAD, "-broad")]

    def __init__(self) -> None:
        super().__init__()
        for name, colours in _COLOURS.items():
            self.register_theme(Theme(name, **colours))
        ours = "advisor-16" if self.console.color_system == "standard" else "advisor"
        self.theme = ours  # first: Textual has begun with the asked name, before there was such a theme
        asked = os.environ.get("TEXTUAL_THEME") or read_record(_REMEMBERED, "")
        if asked in self.available_themes:
            self.theme = asked
        self._colour_reports()
        self.stylesheet.set_variables(self.get_css_variables())
        self._styled = self.theme

    def refresh_css(self, animate: bool = True) -> None:
        """Read all styles again for another theme; Textual also asks for it at the start, and has read them then."""
        if self.theme != self._styled:
            self._styled = self.theme
            self._colour_reports()
            super().refresh_css(animate)

    def _colour_reports(self) -> None:
        """Give the sections of reports, which rich draws, the colours of the theme."""
        colours = self.get_css_variables()  # those of the widgets are read later
        named = {name: Color.parse(colours[colour]).hex6 for name, colour in _REPORT.items()}
        quiet = Color.parse(colours["background"]).blend(Color.parse(colours["foreground"]), 0.6).hex6
        title = f"bold {Color.parse(colours['accent']).hex6}"
        self.console.push_theme(RichTheme(named | {"quiet": quiet, "title": title}))

    def search_themes(self) -> None:
        """Offer the themes, and remember the one that is chosen."""
        super().search_themes()
        self.theme_changed_signal.subscribe(self, lambda theme: write_record(_REMEMBERED, theme.name))
