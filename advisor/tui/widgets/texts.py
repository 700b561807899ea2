"""Texts that are drawn again only when they changed, since each update of one lays the whole screen out again."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from advisor.figures.formatting import plain, printable
from advisor.report.document import Block, Listing, Section
from advisor.report.terminal import body_of


def show_text(widget: Static, text: Content, *, layout: bool = True) -> None:
    """Have a widget show a text. Without ``layout`` its size stays: where that does not depend on the text."""
    before = widget.content
    if not (isinstance(before, Content) and before.is_same(text)):
        widget.update(text, layout=layout)


def show_titles(panel: Widget, title: str, subtitle: str = "") -> None:
    """Show titles in a panel's border. They are set only when they change, since setting one paints the panel again."""
    for name, text in (("border_title", title), ("border_subtitle", subtitle)):
        content = Content(text)
        if (getattr(panel, name) or "") != content.markup:
            setattr(panel, name, content)


class TextPane(VerticalScroll):
    """Scrolls sections of a report. ``ThemedApp`` has their colours."""

    DEFAULT_CSS = """
    TextPane { scrollbar-gutter: stable; }
    TextPane > Static { width: 1fr; height: auto; }
    """

    def __init__(self, *, id: str, classes: str = "") -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, classes=classes)
        self.sections: tuple[Section, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static()

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def show(self, sections: tuple[Section, ...]) -> None:
        """Show these sections from now on."""
        if sections != self.sections:
            self.sections = sections
            self._draw()

    def _draw(self) -> None:
        dark = self.app.current_theme.dark
        parts = [Group(*_lines_of(section, dark=dark)) for section in self.sections]
        spaced = [Padding(part, (0, 0, 1, 0)) for part in parts[:-1]]
        self.query_one(Static).update(Group(*spaced, *parts[-1:]))


def _lines_of(section: Section, *, dark: bool) -> list[RenderableType]:
    title: list[RenderableType] = [Text(plain(section.title), style="title")] if section.title else []
    return title + [_drawn(block, warns=section.warns, dark=dark) for block in section.blocks]


def _drawn(block: Block, *, warns: bool, dark: bool) -> RenderableType:
    """A block as the terminal shows it; code has the colours of its language."""
    if not isinstance(block, Listing):
        return body_of([block], warns=warns)
    from rich.syntax import Syntax  # late: with all of pygments

    text, language = printable(block.text.rstrip("\n")), block.language or "text"
    theme = "ansi_dark" if dark else "ansi_light"
    return Syntax(text, language, theme=theme, word_wrap=True, background_color="default")
