"""Widgets for texts and logs. A text is updated only if it has changed: each update lays the screen out again."""

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Log, Static

from advisor.figures.formatting import plain, printable
from advisor.process.logs import read_end
from advisor.report.document import Listing, Section
from advisor.report.terminal import body_of


def show_text(widget: Static, text: Content, *, layout: bool = True) -> None:
    """Show a text in a widget. Without ``layout`` the widget keeps its size: it must not depend on the text."""
    before = widget.content
    if not (isinstance(before, Content) and before.is_same(text)):
        widget.update(text, layout=layout)


class TextPane(ScrollView):
    """Scrolls sections of a report, and paints only the lines on screen. The colours are set in ``ThemedApp``."""

    def __init__(self, *, id: str, classes: str = "") -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, classes=classes)
        self.sections: tuple[Section, ...] = ()
        self.lines: list[Strip] = []

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def show(self, sections: tuple[Section, ...]) -> None:
        """Show these sections from now on."""
        if sections != self.sections:
            self.sections = sections
            self._draw()

    def on_resize(self, event: events.Resize) -> None:
        if self.scrollable_content_region.width != self.virtual_size.width:  # if equal, the lines are drawn already
            self._draw()

    def _draw(self) -> None:
        width, console, dark = self.scrollable_content_region.width, self.app.console, self.app.current_theme.dark
        if width:  # it is on screen
            body = Group(*_drawn(self.sections, "ansi_dark" if dark else "ansi_light"))
            self.lines = [Strip(line) for line in console.render_lines(body, console.options.update(width=width))]
            self.virtual_size = Size(width, len(self.lines))
            self.refresh()
        else:
            self.virtual_size = Size(0, self.virtual_size.height)  # no pane has the width 0: on_resize draws it later

    def render_line(self, y: int) -> Strip:
        place, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        line = self.lines[place] if place < len(self.lines) else Strip([])
        line = line.apply_style(self.rich_style).crop_extend(0, width, self.rich_style).apply_offsets(0, place)
        if (selection := self.text_selection) and (span := selection.get_span(place)):
            start, end = span[0], width if span[1] < 0 else span[1]  # -1 is the end of the line
            chosen = line.crop(start, end).apply_style(self.screen.get_component_rich_style("screen--selection"))
            line = Strip.join([line.crop(0, start), chosen, line.crop(end)])
        return line

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """The text that the mouse has selected, for Textual's own copying."""
        return selection.extract("\n".join(line.text.rstrip() for line in self.lines)), "\n"


def _drawn(sections: tuple[Section, ...], theme: str) -> Iterator[RenderableType]:
    """Draw sections as the terminal shows them, with an empty line between two, and code with syntax colours."""
    for place, section in enumerate(sections):
        if place:
            yield Text("")
        if section.title:
            yield Text(plain(section.title), style="title")
        for block in section.blocks:
            if isinstance(block, Listing):
                yield _highlighted(printable(block.text.rstrip("\n")), block.language or "text", theme)
            else:
                yield body_of([block], warns=section.warns)


@lru_cache(maxsize=64)
def _highlighted(text: str, language: str, theme: str) -> Text:
    from rich.syntax import Syntax  # late: it imports all of pygments

    highlighted = Syntax("", language, theme=theme, word_wrap=True).highlight(text)
    highlighted.rstrip()
    return highlighted


_TAIL_BYTES = 64 * 1024
_MOST_LINES = 400


def read_tail(path: str) -> str:
    """Return the last lines of a log, without escape sequences; a sentence if there is nothing to show."""
    if not path:
        return "No output."
    try:
        text = read_end(path, _TAIL_BYTES)
    except FileNotFoundError:  # the trial's process has not begun, or the session was measured elsewhere
        return f"There is no log in {path}."
    except OSError as error:
        return f"The log cannot be read: {error.strerror or error}"
    # The lines as a terminal shows them in the end: text after a carriage return replaces its line; no colours.
    lines = (line.rstrip("\r") for line in text.split("\n")[-_MOST_LINES:])
    return printable(Text.from_ansi("\n".join(lines)).plain).strip("\n") or "No output."


class LogTail(Log):
    """Shows the tail of one file at a time; :meth:`poll` follows it while it grows."""

    def __init__(self) -> None:
        super().__init__(id="log", classes="panel", max_lines=_MOST_LINES, auto_scroll=True)
        self.border_title = "Log"
        self._path = ""
        self._stamp: object = None

    def on_show(self) -> None:
        self.poll()  # a hidden log is not read: catch up at once

    def follow(self, path: str) -> None:
        """Show this file from now on."""
        self._path = path
        self.poll()

    def poll(self) -> None:
        """Read the file again if it has changed, but not while the log or its view is hidden."""
        if not self.is_attached or not all(node.display for node in self.ancestors_with_self if node is not self.app):
            return
        stamp: object = (self._path, None)
        with suppress(OSError):
            status = Path(self._path).stat()
            stamp = (self._path, status.st_size, status.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp = stamp
            self.clear()
            self.write(read_tail(self._path))
            self.call_after_refresh(self.scroll_end, animate=False)  # once it has as many rows as its text needs
