"""The base of every view: a container that draws a session's state, owns its keys and carries them out."""

from __future__ import annotations

from functools import lru_cache

from textual import events
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.reactive import var
from textual.widget import Widget

from advisor.figures.formatting import counted
from advisor.report.charts import Plot
from advisor.tui.context import Context
from advisor.tui.keys import key
from advisor.tui.widgets.picture_panel import PicturePanel

# From this width of the screen on, in cells, panels stand beside each other.
BROAD = 100
# Keys of more than one view.
COPY = key(
    "view.copy",
    "y",
    "copy",
    "Copy",
    "Copy the code of the recommendation, the settings of the trial, or the file shown, to the clipboard",
)
PLOT = key(
    "view.plot",
    "p",
    "plot",
    "Plot",
    "The next plot: speed against memory, batch sizes; in the profile the roofline and the step times",
)
# Actions about what is selected, by their labels: the palette names it with them.
_ABOUT_SUBJECT = frozenset({"Accept", "Reject", "Retry", "Copy"})


class View(Container):
    """A view. ``show`` draws the state that the context holds now; it is called only while the view is on screen.

    ``version`` is that of the context as the view shows it: where it is set to another, the view is drawn.
    """

    version: var[int] = var(-1, init=False)

    def __init__(self, context: Context, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, classes="view")
        self.context = context
        self._fitted: Size | None = None
        self._pictured: tuple[object, list[Plot]] = (None, [])

    def watch_version(self) -> None:
        self.show()

    def show(self) -> None:
        """Draw the present state."""
        raise NotImplementedError

    def show_live(self) -> None:
        """Draw the parts of the view that follow the running trial and the clock."""

    @property
    def width(self) -> int:
        """The width in cells: the app's, since a view that comes on screen is drawn before it is laid out."""
        return self.app.size.width

    def on_resize(self, event: events.Resize) -> None:
        """Fit to another size. A view that comes back on screen mostly has the size that it had."""
        if event.size != self._fitted:
            self._fitted = event.size
            self.call_after_refresh(self.fit)

    def fit(self) -> None:
        """Draw for the present size."""
        self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the view's own keys that do nothing just now."""
        return self.can(action)

    def can(self, name: str) -> bool:
        """Whether an action that the view has a key for does anything just now."""
        return True

    @property
    def pictures(self) -> list[Plot]:
        """The view's pictures. Whether there are any is asked after each key: they are made once for a result."""
        wanted = (self.context.version, self.subject)
        if self._pictured[0] != wanted:
            self._pictured = wanted, self.make_pictures()
        return self._pictured[1]

    def make_pictures(self) -> list[Plot]:
        """Make the pictures of the present state."""
        return []

    def action_plot(self) -> None:
        """Show the next picture in place of what the view shows else, and that again behind the last."""
        panel = self.query_one(PicturePanel)
        panel.go_on(self.pictures)
        self.make_room(pictured=panel.is_open)
        self.first_focus().focus()

    def show_pictures(self) -> None:
        """Draw the picture that is shown, if any, as it is now."""
        panel = self.query_one(PicturePanel)
        if panel.is_open:
            panel.show(self.pictures)
            self.make_room(pictured=panel.is_open)

    def make_room(self, *, pictured: bool) -> None:
        """Hide the parts that a picture replaces while there is one."""

    def action_copy(self) -> None:
        """Copy the selection to the terminal's clipboard (OSC 52), and say so."""
        if text := self.text_to_copy():
            self.app.copy_to_clipboard(text)
            self.notify(f"{counted(len(text.splitlines()), 'line')} copied to the clipboard.")

    def text_to_copy(self) -> str:
        """The text that ``y`` copies; empty where there is nothing."""
        return ""

    @property
    def subject(self) -> str:
        """The selected thing that the view's actions are about, for their names in the palette."""
        return ""

    def palette_title(self, label: str) -> str:
        """An action's name in the palette, with what it is about."""
        return f"{label}: {self.subject}" if self.subject and label in _ABOUT_SUBJECT else label

    def choose(self, name: str) -> None:
        """Go to a thing of the view by its name."""

    def first_focus(self) -> Widget:
        """The widget that takes the keys when the view comes on screen: one inside the view, which owns its keys."""
        raise NotImplementedError


@lru_cache(maxsize=64)
def highlighted(code: str, language: str) -> Content:
    """A text in the colours of its language."""
    from textual.highlight import highlight

    return highlight(code, language=language)
