"""The app's themes: dark, light and sixteen colours of our own, and Textual's, with more contrast where needed."""

import math
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

from rich.theme import Theme as RichTheme
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from advisor.files.folders import read_record, write_record
from advisor.tui.text import BROAD

# For each style name in a report's sections, the name of the theme's colour.
_REPORT = {"good": "success", "bad": "error", "warning": "warning"}
_REPORT |= {"name": "secondary", "quiet": "dim", "title": "accent"}
# The least contrast between text and background: 3, as WCAG asks for large text, plus 0.2 for rounded colours.
_LEAST_CONTRAST = 3.2
_TEXTS = ("foreground", "secondary", "accent", "success", "warning", "error")

# This file in the state folder keeps the name of the theme that the person chose last.
_REMEMBERED = "theme.json"
# The colours are in TOML because loading YAML takes longer.
_COLOURS = tomllib.loads(Path(__file__).with_name("themes.toml").read_text(encoding="utf-8"))


class ThemedApp(App[None]):
    """An app in a theme: the one in TEXTUAL_THEME, else the one chosen last, else ours for the terminal's colours."""

    CSS_PATH = "app.tcss"
    TITLE = "perf-advisor"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (BROAD, "-broad")]

    def __init__(self) -> None:
        super().__init__()
        for name, colours in _COLOURS.items():
            self.register_theme(Theme(name, **colours))
        for name in [name for name, theme in self.available_themes.items() if theme.ansi]:
            self.unregister_theme(name)  # only the terminal knows the values of its colours, so they cannot be mixed
        ours = "advisor-16" if self.console.color_system == "standard" else "advisor"
        self.theme = ours  # Textual has set the theme already, before ours were registered
        asked = os.environ.get("TEXTUAL_THEME") or read_record(_REMEMBERED, "")
        if asked in self.available_themes:
            self.theme = asked
        self.stylesheet.set_variables(self.get_css_variables())
        self._styled = self.theme

    def refresh_css(self, animate: bool = True) -> None:
        """Read all styles again if the theme has changed. Textual also calls this at the start, where they are read."""
        if self.theme != self._styled:
            self._styled = self.theme
            super().refresh_css(animate)

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's colours, with legible texts and ``dim`` for less important ones; set those of reports."""
        found = super().get_css_variables()
        grounds = [Color.parse(found[name]) for name in ("background", "surface", "panel")]
        tab = grounds[-1].blend(Color.parse(found["primary"]), 0.3)
        quiet = _legible(Color.parse(found["foreground"]).with_alpha(0.6).hex, grounds)
        found |= {"dim": quiet, "foreground": Color.parse(quiet).with_alpha(1.0).hex}
        for name in _TEXTS:
            found[name] = _legible(found[name], [*grounds, tab] if name in ("foreground", "accent") else grounds)
        shown = {name: (grounds[0] + Color.parse(found[colour])).hex6 for name, colour in _REPORT.items()}
        self.console.push_theme(RichTheme(shown | {"title": f"bold {shown['title']}"}))
        return found

    def search_themes(self) -> None:
        """Offer the themes, and remember the chosen one."""
        super().search_themes()
        self.theme_changed_signal.subscribe(self, lambda theme: write_record(_REMEMBERED, theme.name))


def _legible(text: str, grounds: Sequence[Color]) -> str:
    """Mix a text's colour with black or white until it has enough contrast to each of the backgrounds."""
    colour = Color.parse(text)
    full = grounds[0].get_contrast_text(colour.a)
    mixed = (colour.blend(full, step / 10) for step in range(10))
    legible = (one for one in mixed if all(_contrast((each, each + one)) >= _LEAST_CONTRAST for each in grounds))
    return next(legible, full).hex


def _contrast(colours: Sequence[Color]) -> float:
    """The contrast of two colours by WCAG 2, from 1 to 21; the sRGB curve is simplified to the power 2.2."""
    shares = (0.2126, 0.7152, 0.0722)
    seen = (
        sum(share * math.pow(part, 2.2) for share, part in zip(shares, one.normalized, strict=True)) for one in colours
    )
    dark, light = sorted(seen)
    return (light + 0.05) / (dark + 0.05)
