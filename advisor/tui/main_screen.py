"""The main screen: tabs, gauges, one view at a time, the status line and the keys."""

from textual.app import ComposeResult
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import DIM
from advisor.tui.views import VIEWS
from advisor.tui.views.base import View
from advisor.tui.widgets.lines import GaugeReader, GaugeStrip, KeyFooter, StatusBar, is_working, spread

TICK_S = 1.0


class MainScreen(Screen[object]):
    """Shows one view at a time and the lines around it. The first picture is drawn with the first view alone."""

    BINDINGS = [
        key(f"view.{name}", view.number, f"show_view('{name}')", view.title, view.about, show=False)
        for view in VIEWS
        for name in [view.title.lower()]
    ]
    AUTO_FOCUS = ""  # each view chooses the widget with the focus

    def __init__(self, context: Context, controller: Controller, read_gauges: GaugeReader | None) -> None:
        super().__init__()
        self.context, self._controller = context, controller
        self._navigation, self._gauges = Navigation(context), GaugeStrip(read_gauges, context.recorded)
        self._views = [view(context, controller) for view in VIEWS]
        self._switcher = ContentSwitcher(self._views[0], initial=self._views[0].id, id="views")
        self.status = StatusBar(context)
        self._wanted = ""

    def compose(self) -> ComposeResult:
        yield from (self._navigation, self._gauges, self._switcher, self.status, KeyFooter())

    def on_mount(self) -> None:
        if self.context.recorded is None:
            self.set_interval(TICK_S, self.tick)
        self.action_show_view("result")

    async def add_hidden_views(self) -> None:
        """Add the other views. They come late because they would delay the first picture."""
        for view in self._views[1:]:
            await self._switcher.add_content(view)
        if self._wanted:
            self.action_show_view(self._wanted)

    @property
    def view(self) -> View:
        """The view that is shown."""
        return next(view for view in self._views if view.id == self._switcher.current)

    def action_show_view(self, view_id: str) -> None:
        """Switch to a view, once it is there, and let it take the keys."""
        if all(view.id != view_id for view in self._switcher.children):
            self._wanted = view_id
            return
        self._switcher.current = view_id
        self._navigation.shown = self.view.title
        self.draw()
        self.focus_view()

    def draw(self) -> None:
        """Draw what has changed since the visible view was drawn.

        Without a new result, only the parts that follow the running trial and the clock are drawn.
        """
        if self.view.version == self.context.version:
            self.view.show_live()
        else:
            self.view.version = self.context.version
            self.view.show()
            facts = self.context.state.facts
            self._gauges.device_uuid = facts.workload.device_uuid if facts else None
            self.refresh_bindings()
        self.status.show()
        if self.focused is None and self.is_current:  # the view may have a widget to focus on by now
            self.focus_view()

    def tick(self) -> None:
        """Draw the gauges, the clock and the spinner together, once a second: each drawing slows the trial down."""
        self._gauges.tick()
        if is_working(self.context):
            self.status.turns += self.app.animation_level != "none"
            self.draw()

    def focus_view(self) -> None:
        """Let the view take the keys."""
        self.set_focus(self.view.first_focus(), scroll_visible=False)


class Navigation(Widget):
    """One line of text: the views with their keys, which can be clicked, and the target.

    Textual's own tabs are a dozen widgets: they took a fifth of the time of a switch between views.
    """

    ALLOW_SELECT = False
    auto_links = False  # the links have our colours
    shown: reactive[str] = reactive("")

    def __init__(self, context: Context) -> None:
        super().__init__(id="nav")
        self._target = context.request.target.target

    def render(self) -> Content:
        tabs = self._tabs(titled=True)
        if tabs.cell_length > self.size.width:  # too narrow: only the visible view keeps its title
            tabs = self._tabs(titled=False)
        room = self.size.width - tabs.cell_length - 2
        # A long target is cut at its beginning, because names of files and models differ at their ends.
        name = self._target if len(self._target) <= room else f"…{self._target[len(self._target) - room + 1 :]}"
        return spread(tabs, Content.styled(name if room > 1 else "", DIM), self.size.width - 1)

    def _tabs(self, *, titled: bool) -> Content:
        tabs = []
        for view in VIEWS:
            active = view.title == self.shown
            style, under = ("bold $foreground", " on $primary 30%") if active else (DIM, "")
            title = f" {view.title} " if titled or active else " "
            text = Content.assemble((" ", style + under), (view.number, f"bold $accent{under}"), (title, style + under))
            tabs.append(text.stylize(Style.from_meta({"@click": f"screen.show_view('{view.title.lower()}')"})))
        return Content("").join(tabs)
