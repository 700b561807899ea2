"""The app's own themes: dark, light, and one of sixteen colours; and Textual's others, whose texts are made legible."""

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

# The colours of a report's sections, by their names there.
_REPORT = {"good": "success", "bad": "error", "warning": "warning"}
_REPORT |= {"name": "secondary", "quiet": "dim", "title": "accent"}
# The least contrast of a text to its ground: 3, which WCAG asks of large text, and a little for rounded colours.
_LEAST_CONTRAST = 3.2
_TEXTS = ("foreground", "secondary", "accent", "success", "warning", "error")

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
        for name in [name for name, theme in self.available_themes.items() if theme.ansi]:
            self.unregister_theme(name)  # what its colours are only the terminal knows, so they cannot be mixed
        ours = "advisor-16" if self.console.color_system == "standard" else "advisor"
        self.theme = ours  # first: Textual has begun with the asked name, before there was such a theme
        asked = os.environ.get("TEXTUAL_THEME") or read_record(_REMEMBERED, "")
        if asked in self.available_themes:
            self.theme = asked
        self.stylesheet.set_variables(self.get_css_variables())
        self._styled = self.theme

    def refresh_css(self, animate: bool = True) -> None:
        """Read all styles again for another theme; Textual also asks for it at the start, and has read them then."""
        if self.theme != self._styled:
            self._styled = self.theme
            super().refresh_css(animate)

    def get_css_variables(self) -> dict[str, str]:
        """The colours of the theme, those of texts made legible, ``dim`` for what matters less; also for reports."""
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
        """Offer the themes, and remember the one that is chosen."""
        super().search_themes()
        self.theme_changed_signal.subscribe(self, lambda theme: write_record(_REMEMBERED, theme.name))


def _legible(text: str, grounds: Sequence[Color]) -> str:
    """A colour for text, mixed with black or white until it has enough contrast to each of the grounds."""
    colour = Color.parse(text)
    full = grounds[0].get_contrast_text(colour.a)
    mixed = (colour.blend(full, step / 10) for step in range(10))
    legible = (one for one in mixed if all(_contrast((each, each + one)) >= _LEAST_CONTRAST for each in grounds))
    return next(legible, full).hex


def _contrast(colours: Sequence[Color]) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG 2 defines it, with a plain power for the curve of sRGB."""
    shares = (0.2126, 0.7152, 0.0722)
    seen = (
        sum(share * math.pow(part, 2.2) for share, part in zip(shares, one.normalized, strict=True)) for one in colours
    )
    dark, light = sorted(seen)
    return (light + 0.05) / (dark + 0.05)
