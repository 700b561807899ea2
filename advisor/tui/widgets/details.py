"""The lines under a list that tell all about its selected row."""

from textual.content import Content
from textual.widgets import Static

from advisor.tui.widgets.changes import show_text

_TALL = 30


class Details(Static):
    """It grows with its text. On a tall screen it never shrinks: from row to row the list stays in place."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, markup=False)
        self._room = (0, 0)

    def tell(self, text: Content, width: int) -> None:
        """Show a text on a screen of this width."""
        show_text(self, text, layout=False)
        lines = len(text.wrap(max(1, width - 2)))
        known = self._room[1] if width == self._room[0] and self.app.size.height >= _TALL else 0
        if self._room != (width, max(lines, known)):
            self._room = width, max(lines, known)
            self.styles.height = self._room[1]
