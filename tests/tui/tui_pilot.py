"""Driving the app in tests: a history is played, keys are pressed, and the screen is read as text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from textual.pilot import Pilot
from tui_fakes import FakeControl, make_app

from advisor.session.events import Event
from advisor.tui.app import AdvisorApp
from advisor.tui.result import AppResult

Check = Callable[[Pilot[AppResult], AdvisorApp, FakeControl], Awaitable[None]]


async def drive(
    history: Iterable[Event],
    check: Check,
    *,
    size: tuple[int, int] = (120, 36),
    hold: bool = False,
    toasts: bool = True,
    config_path: str | None = None,
) -> AdvisorApp:
    """Run the app over a history and check it once the history is drawn, its toasts cleared unless they are wanted."""
    app, control = make_app(history, hold=hold, config_path=config_path)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settle(pilot)
        if not toasts:
            app.clear_notifications()
            await settle(pilot)
        await check(pilot, app, control)
        control.cancel()
    return app


async def settle(pilot: Pilot[AppResult]) -> None:
    """Let threads post and handlers draw."""
    for _ in range(5):
        await pilot.pause(0.03)


def screen_text(app: AdvisorApp) -> str:
    """What is on the screen, as lines of text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip)[:width] for strip in lines[:height])
