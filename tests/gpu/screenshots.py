"""Runs a real session in the app and saves a screenshot of each view.

    python tests/gpu/screenshots.py torchvision.models:resnet50 64 180 screenshots

The arguments: target, batch size, budget in seconds, folder.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from advisor.options import Outputs
from advisor.records import TargetSpec
from advisor.session.request import Request
from advisor.tui.launch import open_app

SIZES = {"": (120, 36), "-80x24": (80, 24)}
VIEWS = ("overview", "profile", "trials", "advice", "export")


async def main() -> None:
    target, batch_size, budget_s, folder = sys.argv[1:]
    request = Request(TargetSpec(target, str(Path.cwd()), batch_size=int(batch_size) or None), budget_s=float(budget_s))
    Path(folder).mkdir(parents=True, exist_ok=True)
    app = open_app(request, Outputs())
    async with app.run_test(size=SIZES[""]) as pilot:
        await save_trials_while_they_run(app, pilot, folder)
        while app.context.state.finished is None:
            await pilot.pause(0.5)
        await pilot.pause(6.0)  # the toasts leave
        for suffix, (width, height) in SIZES.items():
            await pilot.resize_terminal(width, height)
            await save_views(app, pilot, folder, suffix)
        await pilot.press("q")


async def save_trials_while_they_run(app, pilot, folder) -> None:
    while len(app.context.state.trials) < 9 and app.context.state.finished is None:
        await pilot.pause(0.5)
    await pilot.press("3")
    await pilot.pause(0.5)
    app.save_screenshot("running.svg", path=folder)


async def save_views(app, pilot, folder, suffix) -> None:
    for number, view in enumerate(VIEWS, start=1):
        await pilot.press(str(number))
        await pilot.pause(1.0)
        app.save_screenshot(f"{view}{suffix}.svg", path=folder)


if __name__ == "__main__":
    asyncio.run(main())
