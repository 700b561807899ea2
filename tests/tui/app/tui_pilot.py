"""Driving the app in tests: a session replays events, keys are pressed, and the screen is read as text."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from textual import _wait
from textual._context import active_app
from textual.app import App
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widgets import Digits, OptionList, Static
from tui_histories import READING

from advisor.experiment.control import Decision
from advisor.experiment.events import Decided, Event, ExportVerified
from advisor.experiment.request import Outputs, Request
from advisor.records import Exported, StackRecord, TargetSpec, Value, Verification
from advisor.tui.app import AdvisorApp
from advisor.tui.controller import SESSION_GROUP
from advisor.tui.main_screen import MainScreen
from advisor.tui.views import VIEWS
from advisor.tui.views.base import ListView, View
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane


class FakeControl:
    """Replays events; records what it was asked in ``calls``. With ``hold`` it runs on until it is cancelled."""

    def __init__(self, history: Iterable[Event], *, hold: bool = False) -> None:
        self.emit: Callable[[Event], None] = lambda event: None
        self.calls: list[tuple[object, ...]] = []
        self.rework_begins_with: list[Event] = []
        self.rework_ends_with: list[Event] = []
        self.error: Exception | None = None
        self.holds_rework = False
        self._history = list(history)
        self._hold = hold
        self._cancelled = threading.Event()
        self._stopped = threading.Event()
        self._awaited: threading.Event | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Most of what a session can be asked is only recorded."""
        if name not in ("skip", "pause", "go_on", "extend", "try_more", "retry"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, *arguments))

    def run(self) -> None:
        self.calls.append(("run",))
        for event in self._history:
            self.emit(event)
        if self.error:
            raise self.error
        if self._hold:
            self._wait_for(self._cancelled)

    def cancel(self) -> None:
        self.calls.append(("cancel",))
        self._cancelled.set()
        self._stopped.set()

    def finish(self) -> None:
        self.calls.append(("finish",))
        self._cancelled.set()

    def decide(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        self.calls.append(("decide", recipe_id, decision) if value is None else ("decide", recipe_id, decision, value))
        self.emit(Decided(recipe_id, decision, value))

    def stop(self) -> None:
        self.calls.append(("stop",))
        self._stopped.set()

    def rework(self) -> None:
        self.calls.append(("rework",))
        for event in self.rework_begins_with:
            self.emit(event)
        if self.holds_rework:
            self._wait_for(self._stopped)
            if not self._cancelled.is_set():
                self._stopped.clear()
        for event in self.rework_ends_with:
            self.emit(event)

    def verify(self, exported: Exported, stack: StackRecord) -> None:
        self.calls.append(("verify", exported.path))
        self.emit(ExportVerified(Verification(exported.path, 1.9, 26.3, 13.8, 1.97)))

    @property
    def held(self) -> bool:
        """Whether a call of the session does nothing until the test lets it go on."""
        awaited = self._awaited
        return awaited is not None and not awaited.is_set()

    def _wait_for(self, awaited: threading.Event) -> None:
        self._awaited = awaited
        awaited.wait(20)
        self._awaited = None


def make_app(
    history: Iterable[Event],
    *,
    hold: bool = False,
    gauges: bool = False,
    target: str = "torchvision.models:resnet50",
    config_path: str | None = None,
    draw_interval_s: float = 0.005,
    clock: Callable[[], float] = lambda: 0.0,
    request: Request | None = None,
    outputs: Outputs | None = None,
) -> tuple[AdvisorApp, FakeControl]:
    """An app with a fake session attached, wired in the order of the command line."""
    control = FakeControl(history, hold=hold)
    app = AdvisorApp(
        request or Request(TargetSpec(target, "/home/me/project"), config_path=config_path),
        outputs or Outputs(config_path=config_path),
        session_id="20261122-154141",
        open_session=lambda: control,
        gauges=(lambda: READING) if gauges else None,
        draw_interval_s=draw_interval_s,
        clock=clock,
    )
    app.animation_level = "none"
    control.emit = app.post_event
    return app, control


SMALL, LARGE, WIDE = (80, 24), (120, 36), (200, 50)
SIZES = [SMALL, LARGE]
NEXT_TIMERS_S = 0.008  # longer than a frame, and than a decision waits for the next one here
LONGEST_WORK_S = 30.0
_LOOK_EVERY_S, _LOOKS = 0.002, 15


@asynccontextmanager
async def driven(
    history: Iterable[Event], *, size: tuple[int, int] = LARGE, **options: Any
) -> AsyncIterator[tuple[Pilot[None], AdvisorApp, FakeControl]]:
    """The app over a history, once that is drawn, with these options of ``make_app``."""
    app, control = make_app(history, **options)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield pilot, app, control
        control.cancel()


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, one after the other, and let the app do what they ask for."""
    await pilot.press(*keys)
    await settle(pilot)


async def tell(pilot: Pilot[Any], *news: Event) -> None:
    """Post events of the session, and let the app draw them."""
    for event in news:
        pilot.app.post_event(event)
    await settle(pilot)


async def choose(pilot: Pilot[Any], name: str) -> None:
    """Go to a row or a format of the view on screen by its name, and let the app draw it."""
    view = pilot.app.view
    if isinstance(view, ListView):
        if hasattr(view, "unfolded"):
            view.unfolded |= {row.key for row in view.context.ranking.rows if name in {one.key for one in row.values}}
        view.table.touched = True
        view.table.go_to(name)
    else:
        formats = view.query_one("#formats", OptionList)
        formats.highlighted = formats.get_option_index(name)
    await settle(pilot)


async def settle(pilot: Pilot[Any]) -> None:
    """Let threads post and handlers draw until nothing is left to do, however long that takes on a busy machine.

    A session that is held is not waited for, nor is a timer that is far off.
    """
    app, quiet = pilot.app, 0
    assert isinstance(app, AdvisorApp)
    end = time.monotonic() + LONGEST_WORK_S
    while quiet < 2 and app.is_running and app.return_code is None:
        assert time.monotonic() < end, "the app does not come to rest"
        # Between the two looks, what is due next goes off: the next frame, a rework, a handler that has just begun.
        await pilot.pause(NEXT_TIMERS_S if quiet else 0)
        quiet = 0 if _has_work(app) else quiet + 1
        if quiet:
            app.screen._compositor.render_strips()


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Let the app work until something holds, however long that takes on a busy machine."""
    end = time.monotonic() + LONGEST_WORK_S
    while not holds():
        assert time.monotonic() < end, screen_text(pilot.app)
        await pilot.pause(NEXT_TIMERS_S)


async def wait_for_idle(min_sleep: float = _wait.SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
    """Stands for Textual's own, which sleeps twice for each key: ends as soon as nothing is left to do."""
    app, quiet = active_app.get(None), 0
    if isinstance(app, AdvisorApp) and not min_sleep:
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_EVERY_S)
            quiet = 0 if _has_work(app) else quiet + 1
            if quiet == 2:
                return
    await _wait.wait_for_idle(min_sleep, max_sleep)


def _has_work(app: AdvisorApp) -> bool:
    """Whether a thread is at work, a message is on its way, or something is to be drawn."""
    control = app.context.control
    held = isinstance(control, FakeControl) and control.held
    if any(not worker.is_finished and not (held and worker.group == SESSION_GROUP) for worker in app.workers):
        return True
    hidden = len(app.base_screen.query(View)) < len(VIEWS)  # they are added after the first picture
    if hidden or not app._inbox.empty():
        return True
    pumps = [app, *(pump for screen in app.screen_stack for pump in screen.walk_children(with_self=True))]
    if any(pump.message_queue_size or pump._next_callbacks for pump in pumps):
        return True
    screen = app.screen
    return bool(screen._callbacks or screen._dirty_widgets or screen._layout_required or screen._recompose_required)


def screen_text(app: App[Any]) -> str:
    """What is on the screen, as lines of text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip)[:width] for strip in lines[:height])


def pane_text(pane: TextPane) -> str:
    """What stands in a pane, also what is scrolled out of it."""
    return "\n".join(line.text.rstrip() for line in pane.lines)


def cells(table: Table, column: str) -> dict[str, str]:
    """What stands in a column of a table, by row."""
    return {key: table.get_cell(key, column).plain for key in table.keys}


def setting_cell(app: AdvisorApp, name: str, column: str = "speed") -> str:
    """What stands in a setting's row of view 1."""
    return app.query_one("#rows", Table).get_cell(name, column).plain


def headline(app: AdvisorApp) -> str:
    """The headline of view 1: the large figure and the text beside it."""
    return f"{app.query_one('#figure', Digits).value} {app.query_one('#headline-text', Static).content.plain}"


async def check_figures(pilot: Pilot[Any]) -> int:
    """Check that no measured row of view 1 has an empty cell, and that each speed-up, also that of the headline, is the
    quotient of the step times beside it; return the number of measured rows."""
    app = pilot.app
    app.view.unfolded |= {row.key for row in app.context.ranking.rows}
    await settle(pilot)
    table = app.query_one("#rows", Table)
    rows = {key: {one.key: table.get_cell(key, one.key).plain for one in table.shown} for key in table.keys}
    measured = {key: row for key, row in rows.items() if "x" in row["speed"]}
    for key, row in measured.items():
        assert [column for column, text in row.items() if column != "tick" and not text.strip()] == [], key
        if "→" in row.get("steps", ""):
            told = float(re.findall(r"[\d.]+", row["speed"])[0])
            assert abs(_quotient(row["steps"]) / told - 1) <= 0.02, key
    if match := re.search(r"([\d.]+)x faster: (.*? → .*? m?s) a step", headline(app)):
        assert abs(_quotient(match[2]) / float(match[1]) - 1) <= 0.01, match[0]
    return len(measured)


def _quotient(steps: str) -> float:
    """The quotient of two step times: ``26.3 → 13.4 ms``."""
    before, after = (one.split(" ") for one in steps.split(" → "))
    units = {"µs": 1e-3, "ms": 1.0, "s": 1e3}
    return float(before[0]) * units[before[-1] if before[1:] else after[1]] / (float(after[0]) * units[after[1]])


def notice(app: AdvisorApp) -> str:
    """The status line."""
    return app.base_screen.query_one("#status", Static).content.plain


class Key(NamedTuple):
    """A key of a view, or of all views where ``view`` is empty."""

    view: str
    binding: Binding

    @property
    def id(self) -> str:
        return self.binding.id or ""


def _keys_of(owner: type[DOMNode], view: str = "") -> list[Key]:
    """The keys that a class and its bases declare: those with an id, the first of several for the same."""
    declared = [binding for base in reversed(owner.__mro__) for binding in base.__dict__.get("BINDINGS", ())]
    found: dict[str, Key] = {}
    for bindings in BindingsMap(declared).key_to_bindings.values():
        for binding in bindings:
            if binding.id and not binding.id.startswith(("command", "screen.copy")) and binding.tooltip:
                found.setdefault(binding.id, Key(view, binding))
    return list(found.values())


KEYS = [
    *(key for view in VIEWS for key in _keys_of(view, view.title.lower())),
    *_keys_of(Table),
    *_keys_of(MainScreen),
    *_keys_of(AdvisorApp),
]
