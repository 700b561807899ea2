"""The base of every view: a container that draws a session's state, owns its keys and carries them out."""

from __future__ import annotations

from textual import events
from textual.containers import Container
from textual.geometry import Size
from textual.widget import Widget

from advisor.figures.formatting import counted
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key

# A key of more than one view.
COPY = key(
    "view.copy",
    "y",
    "copy",
    "Copy",
    "Copy the code of the recommendation, the settings of the trial, or the file shown, to the clipboard",
)


class View(Container):
    """A view. ``show`` draws the state that the context holds now; it is called only while the view is on screen.

    ``version`` is that of the context as the view shows it. The id is in the name of the class, as in ``VIEWS``.
    """

    def __init__(self, context: Context, controller: Controller) -> None:
        super().__init__(id=type(self).__name__.removesuffix("View").lower(), classes="view")
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
        """The width in cells: the app's, since a view that comes on screen is drawn before it is laid out."""
        return self.app.size.width

    def on_resize(self, event: events.Resize) -> None:
        """Draw for another size. A view that comes back on screen mostly has the size that it had."""
        if event.size != self._fitted:
            self._fitted = event.size
            self.call_after_refresh(self.show)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the view's own keys that do nothing just now."""
        return self.can(action)

    def can(self, name: str) -> bool:
        """Whether an action that the view has a key for does anything just now."""
        return True

    def action_copy(self) -> None:
        """Copy the selection to the terminal's clipboard (OSC 52), and say so."""
        if text := self.text_to_copy():
            self.app.copy_to_clipboard(text)
            self.notify(f"{counted(len(text.splitlines()), 'line')} copied to the clipboard.")

    def text_to_copy(self) -> str:
        """The text that ``y`` copies; empty where there is nothing."""
        return ""

    def choose(self, name: str) -> None:
        """Go to a thing of the view by its name."""

    def first_focus(self) -> Widget:
        """The widget that takes the keys when the view comes on screen: one inside the view, which owns its keys."""
        raise NotImplementedError
