"""Texts that are drawn again only when they changed, since each update of one lays the whole screen out again."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from advisor.figures.formatting import plain, printable
from advisor.report.document import Listing, Section
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
        parts = [Group(*self._drawn(section)) for section in self.sections]
        spaced = [Padding(part, (0, 0, 1, 0)) for part in parts[:-1]]
        self.query_one(Static).update(Group(*spaced, *parts[-1:]))

    def _drawn(self, section: Section) -> Iterator[RenderableType]:
        """A section as the terminal shows it; code has the colours of its language."""
        if section.title:
            yield Text(plain(section.title), style="title")
        for block in section.blocks:
            if not isinstance(block, Listing):
                yield body_of([block], warns=section.warns)
                continue
            from rich.syntax import Syntax  # late: with all of pygments

            theme, ground = "ansi_dark" if self.app.current_theme.dark else "ansi_light", self.background_colors[1].hex6
            text, language = printable(block.text.rstrip("\n")), block.language or "text"
            yield Syntax(text, language, theme=theme, word_wrap=True, background_color=ground)
