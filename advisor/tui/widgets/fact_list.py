"""A list of labelled facts with a hanging indent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from advisor.tui.text import DIM, LABEL
from advisor.tui.widgets.texts import look_same

Fact = tuple[str, "Content | str"]


class FactList(Widget):
    """Labels in one column, values wrapped in the other; a sentence when there is nothing to show yet."""

    DEFAULT_CSS = """
    FactList { height: auto; width: 1fr; }
    """

    def __init__(
        self,
        *,
        label_width: int = 10,
        label_style: str = LABEL,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._empty = ""
        self._label_width = label_width
        self._label_style = label_style
        self._facts: tuple[Fact, ...] = ()

    def show(self, facts: Sequence[Fact], empty: str = "") -> None:
        """Replace the facts, and the sentence that stands for them where there are none.

        User text may stand in a value as a plain string: it is taken literally.
        """
        if not look_same(tuple(facts), self._facts) or empty != self._empty:
            self._facts, self._empty = tuple(facts), empty
            self.refresh(layout=True)

    @property
    def plain(self) -> str:
        """The facts as text, one a line."""
        return "\n".join(f"{label}  {value}" for label, value in self._facts)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self._lines(width)))

    def render(self) -> Content:
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, width: int) -> list[Content]:
        if not self._facts:
            return Content.styled(self._empty, DIM).wrap(max(1, width))
        return fact_lines(self._facts, width, self._label_width, self._label_style)


def fact_lines(facts: Iterable[Fact], width: int, label_width: int = 10, label_style: str = LABEL) -> list[Content]:
    """Facts as lines of this width."""
    room = max(8, width - label_width)
    lines: list[Content] = []
    for label, value in facts:
        head = Content.styled(label.ljust(label_width), label_style)
        for part in _wrapped(value, room) or [Content("")]:
            lines.append(head + part)
            head = Content(" " * label_width)
    return lines


def _wrapped(value: Content | str, width: int) -> list[Content]:
    content = Content(value) if isinstance(value, str) else value
    return content.wrap(width)
