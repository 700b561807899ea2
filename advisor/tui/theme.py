"""The app's own themes: dark, light, and one of sixteen colours; the palette offers all of Textual's others."""

import os
from dataclasses import dataclass

from rich.theme import Theme as RichTheme
from textual.app import App, ReturnType
from textual.color import Color
from textual.notifications import SeverityLevel
from textual.theme import Theme

from advisor.files.state_folder import read_record, write_record

ADVISOR_THEME = Theme(
    name="advisor",
    primary="#6ea8fe",
    secondary="#8b9dc3",
    accent="#f2a65a",
    foreground="#d7dce5",
    background="#0f1218",
    surface="#151a22",
    panel="#1d2430",
    success="#5fd38d",
    warning="#f0c05a",
    error="#f2707a",
    dark=True,
    variables={
        "border": "#3a4558",
        "border-blurred": "#2b3443",
        "footer-background": "#151a22",
        "block-cursor-background": "#2b4a78",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#222c3c",
        "input-selection-background": "#6ea8fe 35%",
    },
)

ADVISOR_LIGHT_THEME = Theme(
    name="advisor-light",
    primary="#1f5fbf",
    secondary="#47597d",
    accent="#9a4a08",
    foreground="#1c2430",
    background="#fbfbfc",
    surface="#f2f4f7",
    panel="#e4e8ee",
    success="#00756b",
    warning="#7d5200",
    error="#b3262e",
    dark=False,
    variables={
        "border": "#9aa7ba",
        "border-blurred": "#c6cedb",
        "footer-background": "#f2f4f7",
        "block-cursor-background": "#cfdef6",
        "block-cursor-foreground": "#10182a",
        "block-cursor-blurred-background": "#e4e8ee",
        "input-selection-background": "#1f5fbf 25%",
    },
)
# Colours that a terminal of sixteen has. Of those above, the accent would become the red of an error there.
ADVISOR_SIXTEEN_THEME = Theme(
    name="advisor-16",
    primary="#8888ff",
    secondary="#c0c0c0",
    accent="#55ffff",
    foreground="#e5e5e5",
    background="#000000",
    surface="#000000",
    panel="#000000",
    success="#55ff55",
    warning="#ffff55",
    error="#ff5555",
    dark=True,
    variables={
        "border": "#c0c0c0",
        "border-blurred": "#555555",
        "block-cursor-background": "#0000aa",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#555555",
        "block-cursor-blurred-foreground": "#ffffff",
    },
)
# The narrowest screens of each class of styles, as Textual declares them.
BREAKPOINTS = [(0, "-narrow"), (100, "-broad")]
THEMES = (ADVISOR_THEME, ADVISOR_LIGHT_THEME, ADVISOR_SIXTEEN_THEME)


# The colours of a report's sections, by their names there.
_REPORT = {"good": "success", "bad": "error", "warning": "warning", "name": "secondary"}

# The file of the state folder that has the person's choice.
_REMEMBERED = "theme.json"


@dataclass(frozen=True, slots=True)
class ChosenTheme:
    """The theme that the person chose last; empty for none."""

    theme: str = ""
    schema: int = 1


class ThemedApp(App[ReturnType]):
    """An app in the theme that TEXTUAL_THEME names, that the person chose last, or ours for the terminal's colours."""

    CSS_PATH = "app.tcss"
    TITLE = "perf-advisor"
    HORIZONTAL_BREAKPOINTS = BREAKPOINTS

    def __init__(self) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        ours = ADVISOR_SIXTEEN_THEME if self.console.color_system == "standard" else ADVISOR_THEME
        self.theme = ours.name  # first: Textual has begun with the asked name, before there was such a theme
        asked = os.environ.get("TEXTUAL_THEME") or read_record(_REMEMBERED, ChosenTheme()).theme
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
        self.theme_changed_signal.subscribe(self, lambda theme: write_record(_REMEMBERED, ChosenTheme(theme.name)))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Tell the person something, in place of Textual's toasts. It is text, never markup."""
        self.show_notice(f"{title}: {message}" if title else message, severity)

    def show_notice(self, text: str, severity: SeverityLevel) -> None:
        """Show a notice, where the app has a place for it."""
