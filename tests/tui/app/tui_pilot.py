"""Driving the app in tests: a history is played, keys are pressed, and the screen is read as text."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from textual import _wait
from textual._context import active_app
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import OptionList, Static
from tui_fakes import FakeControl, make_app

from advisor.experiment.events import Event
from advisor.tui.app import AdvisorApp
from advisor.tui.controller import SESSION_GROUP
from advisor.tui.views import VIEWS
from advisor.tui.views.base import ListView, View
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane

SMALL, LARGE = (80, 24), (120, 36)
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
    if not app._inbox.empty() or len(app.base_screen.query(View)) < len(
        VIEWS
    ):  # hidden ones are added after the first picture
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


def notice(app: AdvisorApp) -> str:
    """The status line."""
    return app.base_screen.query_one("#status", Static).content.plain
