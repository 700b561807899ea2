"""Base classes of views: one for all views, one for views with a table and a card about the selected row."""

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import DataTable

from advisor.report.document import Section
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import BROAD
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane

# The card beside the table: its least width in cells, and its share of the screen's width.
LEAST_CARD, CARD_SHARE = 36, 0.33

# Keys of every view with a list.
LIST_KEYS = (
    key("trial.retry", "t", "retry", "Retry", "Run the selected trial again"),
    key("view.back", "escape", "back", "Back", "Go back to the list", key_display="esc"),
)


class View(Container):
    """A view. ``show`` draws the context's present state; it is called only while the view is on screen.

    ``number`` is the view's key, ``title`` its name (in small letters its id), ``about`` its description.
    ``version`` is the version of the context that was drawn last.
    """

    number: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]

    def __init__(self, context: Context, controller: Controller) -> None:
        super().__init__(id=self.title.lower(), classes="view")
        self.context, self.controller = context, controller
        self.version = -1
        self._fitted: Size | None = None

    def show(self) -> None:
        """Draw the present state."""
        raise NotImplementedError

    def show_live(self) -> None:
        """Draw the parts of the view that follow the running trial and the clock."""

    @property
    def width(self) -> int:
        """The app's width in cells: a view is drawn before it is laid out, so its own width is not known yet."""
        return self.app.size.width

    def on_resize(self, event: events.Resize) -> None:
        """Draw again if the size has changed. A view that comes back on screen usually has its former size."""
        if event.size != self._fitted:
            self._fitted = event.size
            self.call_after_refresh(self.show)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the view's own keys that do nothing just now."""
        return self.can(action)

    def can(self, name: str) -> bool:
        """Whether an action of the view's keys does anything just now."""
        return True

    def first_focus(self) -> Widget:
        """The widget in this view that takes the focus when the view comes on screen."""
        raise NotImplementedError


class ListView(View):
    """A table and a card about its selected row. The card is beside the table on a broad screen, else under it.

    Enter goes into the card, Escape comes back. ``pane`` shows the card; the widgets ``under`` it come below.
    """

    def __init__(self, context: Context, controller: Controller, table: Table, pane: TextPane, *under: Widget) -> None:
        super().__init__(context, controller)
        self.table, self.pane = table, pane
        self._side = Vertical(pane, *under, classes="side")
        self._carded = "", ""

    def compose(self) -> ComposeResult:
        yield Container(self.table, self._side, classes="body")

    @property
    def selected(self) -> str:
        """The key of the selected row."""
        return self.table.cursor_key

    @property
    def table_width(self) -> int:
        """The table's width in cells."""
        card = max(LEAST_CARD, int(self.width * CARD_SHARE))
        self._side.styles.width = card if self.width >= BROAD else "1fr"
        return self.width - card if self.width >= BROAD else self.width

    def card(self) -> tuple[str, tuple[Section, ...]]:
        """The title and the sections about the selected row."""
        raise NotImplementedError

    def show_card(self) -> None:
        """Draw the card of the selected row."""
        title, sections = self.card()
        if self._carded != (self.selected, title):  # a border is painted again whenever it is set
            self.pane.scroll_home(animate=False)
            self.pane.border_title = Content(title)
        self._carded = self.selected, title
        self.pane.show(sections)

    @on(DataTable.RowHighlighted)
    def _on_row_highlighted(self) -> None:
        self.show_card()
        self.refresh_bindings()

    @on(DataTable.RowSelected)
    def action_read(self) -> None:
        """Go into the card. A narrow screen then hides the table."""
        self.add_class("-reading")
        self.second_focus().focus()

    def action_back(self) -> None:
        """Go back to the table."""
        self.remove_class("-reading")
        self.table.focus()

    def action_retry(self) -> None:
        """Run the selected trial again."""
        self.controller.retry(self.selected)

    def can(self, name: str) -> bool:
        """Whether an action does anything just now; most actions depend on the selected row."""
        if name == "back":
            return self.second_focus().has_focus
        if name == "retry":
            waiting = any(job.trial == self.selected for job in self.context.jobs[1:])
            tried = self.selected in self.context.state.trials and not waiting
            return tried and self.context.recorded is None
        return True

    def first_focus(self) -> Widget:
        return self.table

    def second_focus(self) -> Widget:
        """The widget that Enter moves to."""
        return self.pane
