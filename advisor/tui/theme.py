"""The app's own themes, dark and light; all of Textual's others can be chosen from the palette."""

from __future__ import annotations

from textual.theme import Theme

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
        "footer-key-foreground": "#f2a65a",
        "footer-background": "#151a22",
        "block-cursor-background": "#2b4a78",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#222c3c",
        "block-cursor-blurred-foreground": "#d7dce5",
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
        "footer-key-foreground": "#9a4a08",
        "footer-background": "#f2f4f7",
        "block-cursor-background": "#cfdef6",
        "block-cursor-foreground": "#10182a",
        "block-cursor-blurred-background": "#e4e8ee",
        "block-cursor-blurred-foreground": "#1c2430",
        "input-selection-background": "#1f5fbf 25%",
    },
)
# The narrowest screens of each class of styles, as Textual declares them.
BREAKPOINTS = [(0, "-narrow"), (100, "-broad")]
THEMES = (ADVISOR_THEME, ADVISOR_LIGHT_THEME)
