"""The terminal app: a session's events in, decisions and files out.

Threads only post messages; the handlers here, in the UI thread, change the state and draw the view on screen.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rich.console import Console
from textual import on, work
from textual.app import SystemCommand
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from advisor.errors import ExitCode
from advisor.experiment.events import Event, SessionFailed, SessionFinished
from advisor.experiment.past.journal import PastSession
from advisor.experiment.request import Outputs, Request
from advisor.recipe.catalog import load_catalog
from advisor.report.document import Listing, section, shown
from advisor.tui.context import Context, Job, events_of
from advisor.tui.controller import MEASURING, SESSION_GROUP, Controller
from advisor.tui.keys import APP_KEYS
from advisor.tui.main_screen import MainScreen
from advisor.tui.screens import Palette, QuitScreen, TextScreen, help_sections
from advisor.tui.theme import ThemedApp
from advisor.tui.views.base import View
from advisor.tui.widgets.lines import GaugeReader

if TYPE_CHECKING:
    from advisor.experiment.session import Session

STOP_WAIT_S, BEGINS_WITHIN_S = 2.0, 5.0
RINGS_AFTER_S = 30.0  # the terminal's bell rings at the end of a longer session: the person may look elsewhere
DRAW_INTERVAL_S = 0.1  # nobody reads faster, and drawing slows the trial down


class AdvisorApp(ThemedApp):
    """Four views of one session.

    ``open_session`` is called once the app is on screen. It opens a session, which posts its events to ``post_event``.
    A ``recorded`` session is only shown: nothing is measured.
    """

    BINDINGS = list(APP_KEYS)
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (16, "-short"), (30, "-tall")]

    def __init__(
        self,
        request: Request,
        outputs: Outputs,
        *,
        session_id: str = "",
        open_session: Callable[[], Session] | None = None,
        gauges: GaugeReader | None = None,
        recorded: PastSession | None = None,
        draw_interval_s: float = DRAW_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.context = Context(request, outputs, session_id, recorded=recorded, clock=clock)
        for event in events_of(recorded) if recorded else ():
            self.context.take(event)
        self._open_session = open_session
        self._read_gauges = gauges
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self.controller = Controller(self, self.context, self._draw)
        self._draw_interval_s = draw_interval_s
        self._stopping = False

    def post_event(self, event: Event) -> None:
        """Take an event of the session. Any thread may call this, before, during and after the app's life."""
        self._inbox.put(event)

    def get_default_screen(self) -> MainScreen:
        """The screen with the views."""
        return MainScreen(self.context, self.controller, self._read_gauges)

    async def on_ready(self) -> None:
        """After the first picture: add the hidden views, then start to measure."""
        self.theme_changed_signal.subscribe(self, lambda _: self._draw())
        await self.base_screen.add_hidden_views()
        gc.enable()
        self._load_recipes()
        if self._open_session and not self._stopping:  # a signal may have come before
            self.context.control = self._open_session()
            self.set_interval(self._draw_interval_s, self._draw_news)
            self.controller.add(Job(MEASURING, self.context.control.run))
        if self.context.recorded and self.context.state.failure:
            self._show_failure(self.context.state.failure)
        self._draw()

    @work(exit_on_error=False, group="catalog")
    async def _load_recipes(self) -> None:
        self.context.catalog = catalog = await asyncio.to_thread(load_catalog, self.context.request.recipe_folders)
        for problem in catalog.problems:
            self.notify(problem, title="A recipe could not be loaded", severity="warning")
        self._draw()

    def _draw_news(self) -> None:
        """Take the waiting events and draw them at once. Blocks and progress are drawn by the clock, once a second."""
        before = self.context.version, self.context.state.activity
        self._take_events()
        if self.alive and (self.context.version, self.context.state.activity) != before:
            self.base_screen.draw()

    def _take_events(self) -> None:
        """Take the waiting events."""
        while not self._inbox.empty():  # no other thread takes events from it
            event = self._inbox.get_nowait()
            self.context.take(event)
            match event:
                case SessionFailed():
                    self._show_failure(event)
                case SessionFinished(cancelled, session_s):
                    self.controller.session_finished()
                    if session_s > RINGS_AFTER_S and not cancelled and self.alive:
                        self.bell()
                        Console(file=sys.__stdout__).set_window_title("perf-advisor: done")

    def _show_failure(self, failure: SessionFailed) -> None:
        if self.alive:
            self._draw()  # now, because Textual lays out no screen that a dialog covers
            error, details = section("", failure.message, warns=True), Listing(failure.details.rstrip())
            found = shown([error, section("", failure.hint), section("", details)])
            self.call_after_refresh(self.push_screen, TextScreen("The session cannot go on", found, kind="failure"))

    def _draw(self) -> None:
        """Take the waiting events and draw everything, after an action of the person or when a job begins or ends."""
        self._take_events()
        if self.alive:
            self.context.version += 1
            self.base_screen.draw()

    def notify(self, message: str, *, title: str = "", severity: SeverityLevel = "information", **_: Any) -> None:
        """Show a message in the status line, where it covers nothing. The message is plain text, never markup."""
        if self.alive:
            self.base_screen.status.show_notice(f"{title}: {message}" if title else message, severity)

    @on(Worker.StateChanged)
    def _on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group != SESSION_GROUP:
            if event.state is WorkerState.ERROR:
                self.notify(str(event.worker.error), severity="error")
            return
        if event.state is WorkerState.ERROR and (error := event.worker.error):
            details = "".join(traceback.format_exception(error))
            hint = "This is a bug of ours; please report it with the details."
            self.post_event(SessionFailed(f"{type(error).__name__}: {error}", hint, details, ExitCode.BUG))
        if event.state in (WorkerState.SUCCESS, WorkerState.ERROR, WorkerState.CANCELLED):
            self._take_events()
            self.controller.job_done()
        self._draw()

    @property
    def alive(self) -> bool:
        """Whether there are widgets to draw on; false before the start and while the app closes."""
        return self.is_running and not self._stopping and bool(self.screen_stack) and self.base_screen.is_mounted

    @property
    def base_screen(self) -> MainScreen:
        """The screen with the views, under any dialog."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    @property
    def view(self) -> View:
        """The view on screen."""
        return self.base_screen.view

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys that do nothing just now. Ctrl-C copies text that the mouse has selected, and else quits."""
        if action == "quit_at_once":
            return not (self.alive and self.screen.selections)
        return action != "steer" or (self.alive and self.controller.can(str(parameters[0])))

    def action_steer(self, name: str) -> None:
        """Carry out a key that steers the session."""
        self.controller.steer(name)
        self._draw()

    def action_help(self) -> None:
        """Show the help screen."""
        sections = help_sections(self.view, self.base_screen.active_bindings.values(), self.get_key_display)
        self.push_screen(TextScreen("Help", shown(sections)))

    def action_command_palette(self) -> None:
        """Open the palette."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The commands of the palette: every action that does something now, the themes, and quitting."""
        seen = set[str]()
        for node, binding, _, _ in self.base_screen.active_bindings.values():
            if binding.id and not binding.system and binding.id not in seen:
                seen.add(binding.id)
                title = f"Go to {binding.description}" if binding.id.startswith("view.") else binding.description
                yield SystemCommand(title, binding.tooltip, partial(self.run_action, binding.action, node))
        yield SystemCommand("Theme", "Choose another theme", self.action_change_theme)
        yield SystemCommand("Quit", "Leave; everything measured is kept", self.action_quit)

    async def action_quit(self) -> None:
        """Leave. While something is measured, ask first; a second call leaves at once."""
        working = self.context.control is not None and bool(self.context.jobs)
        if not working or self._stopping or self.context.state.failure or isinstance(self.screen, QuitScreen):
            await self.action_quit_at_once()
            return
        self.push_screen(QuitScreen(self.context.state.running), self._leave)

    async def _leave(self, answer: bool | None) -> None:
        if answer:
            await self.action_quit_at_once()

    async def action_quit_at_once(self) -> None:
        """Stop the session, wait a moment for it, and leave."""
        if not self._stopping:
            self._stopping = True
            del self.context.jobs[1:]
            if self.context.control:
                self.context.control.cancel()
            deadline = time.monotonic() + STOP_WAIT_S
            running = [worker for worker in self.workers if worker.group == SESSION_GROUP]
            while any(not worker.is_finished for worker in running) and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        self._take_events()
        self.exit(return_code=self.exit_code)

    @property
    def exit_code(self) -> int:
        """The exit code, also if the app never opened."""
        state = self.context.state
        if self.context.recorded is None and state.failure:
            return state.failure.exit_code
        ended = state.finished is not None and not state.finished.cancelled
        return ExitCode.OK if self.context.recorded or ended else ExitCode.INTERRUPTED

    def leave_soon(self) -> None:
        """Leave after a signal, without a question. A signal handler may call this, even before the app has begun."""

        def wait_and_leave() -> None:
            until = time.monotonic() + BEGINS_WITHIN_S
            while not self.alive and time.monotonic() < until:
                time.sleep(0.02)
            self.call_later(self.action_quit_at_once)

        threading.Thread(target=wait_and_leave, name="leave", daemon=True).start()  # a signal's handler must not wait
