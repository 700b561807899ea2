"""The screen with the views: tabs, gauges, one view at a time, the status and the keys."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from advisor.tui.actions import VIEWS, screen_bindings, view_info
from advisor.tui.context import Context
from advisor.tui.views import view_class
from advisor.tui.views.base import View
from advisor.tui.widgets.gauges import GaugeReader, GaugeStrip
from advisor.tui.widgets.key_footer import KeyFooter
from advisor.tui.widgets.nav import NavBar, NavTab
from advisor.tui.widgets.status import StatusBar


class MainScreen(Screen[object]):
    """Its first view is there from the start, the others once :meth:`mount_hidden_views` has been awaited.

    Textual paints a whole screen again when another widget gets the focus; here the two widgets draw themselves.
    """

    BINDINGS: ClassVar[list[BindingType]] = screen_bindings()
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    class Shown(Message):
        """The screen has been painted for the first time."""

    class Switched(Message):
        """Another view is on screen, drawn as all is now."""

    def __init__(self, context: Context, read_gauges: GaugeReader | None) -> None:
        super().__init__(id="_default")  # as Textual calls it
        self.context = context
        self._read_gauges = read_gauges
        self._wanted = ""
        self._version = -1  # of the context, as it was drawn last

    def compose(self) -> ComposeResult:
        yield NavBar(self.context.request.target.target, self.context.recorded)
        yield GaugeStrip(self._read_gauges, self.context.recorded)
        with ContentSwitcher(initial=VIEWS[0].id, id="views"):
            yield view_class(VIEWS[0].id)(self.context)
        yield StatusBar()
        yield KeyFooter()

    def on_mount(self) -> None:
        self.show_view(VIEWS[0].id)
        self.draw()
        self.focus_view()
        self.call_after_refresh(self.post_message, self.Shown())

    async def mount_hidden_views(self) -> None:
        """Add the views that nobody sees yet: the first paint does not wait for them."""
        hidden = [view_class(view.id)(self.context) for view in VIEWS[1:]]
        for view in hidden:
            view.display = False
        await self._switcher.mount_all(hidden)
        if self._wanted:
            self.show_view(self._wanted)
            self.draw()
            self.focus_view()

    @property
    def _switcher(self) -> ContentSwitcher:
        return self.query_one("#views", ContentSwitcher)

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self._switcher.get_child_by_id(self._switcher.current or VIEWS[0].id, View)

    def show_view(self, view_id: str) -> None:
        """Switch to a view, once it is there; :meth:`draw` draws it."""
        if all(view.id != view_id for view in self._switcher.children):
            self._wanted = view_id
            return
        self._switcher.current = view_id
        self.query_one(NavBar).mark(view_id)
        self.query_one(GaugeStrip).sentence = view_info(view_id).sentence

    @on(NavTab.Chosen)
    def _on_tab_chosen(self, message: NavTab.Chosen) -> None:
        self.action_show_view(message.view_id)

    def action_show_view(self, view_id: str) -> None:
        """Switch to a view and let it take the keys."""
        self.show_view(view_id)
        self.draw()
        self.focus_view()
        self.post_message(self.Switched())

    def action_step_view(self, step: int) -> None:
        """Switch to a neighbouring view, around the ends."""
        ids = [view.id for view in VIEWS]
        self.action_show_view(ids[(ids.index(self.view.id or ids[0]) + step) % len(ids)])

    def draw(self) -> None:
        """Draw the visible view, and the bars around it."""
        self._version = self.context.version
        self.view.show()
        self.query_one(StatusBar).show(self.context)
        self.query_one(GaugeStrip).device_uuid = self.context.device_uuid
        self.refresh_bindings()

    def draw_news(self) -> None:
        """Draw what events have changed: between two results that is what follows the running trial and the clock."""
        if self.context.version != self._version:
            self.draw()
        else:
            self.view.show_live()
            self.query_one(StatusBar).show(self.context)

    def focus_view(self) -> None:
        """Let the view take the keys."""
        self.set_focus(self.view.first_focus(), scroll_visible=False)
