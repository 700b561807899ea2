"""Draws the views of a recorded session at its end, or view 1 at moments of it; checks the figures on each picture.

    python tests/gpu/screenshots.py SESSION screenshots
    python tests/gpu/screenshots.py SESSION moments 5 20 60

The seconds are those after which view 1 is drawn at three sizes of the terminal, as well as at the end.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "tui/app")]

from tui_pilot import LARGE, SMALL, WIDE, check_figures, driven, press, settle

from advisor.experiment.past.journal import PastSession, open_session
from advisor.experiment.request import Outputs, beside_own_files

VIEWS = {"result": "1", "profile": "2", "trials": "3 home", "export": "4"}


async def draw(past: PastSession, folder: Path) -> None:
    """Draw every view, as an app does that has measured the session."""
    outputs = beside_own_files(Outputs(), past.request)
    async with driven([*past.events], request=past.request, outputs=outputs) as (pilot, app, _control):
        for name, keys in VIEWS.items():
            await press(pilot, *keys.split())
            app.save_screenshot(f"{name}.svg", path=str(folder))
        await press(pilot, "1")
        await check_figures(pilot)


async def draw_moments(past: PastSession, times: list[float], folder: Path, moments: list[float]) -> None:
    """Draw view 1 as it is after these seconds of a session, whose events came at ``times``, and at its end."""
    for moment in (*moments, times[-1]):
        events = past.events[: sum(at <= moment for at in times)]
        for size in (SMALL, LARGE, WIDE):
            now = [0.0]
            options = {"size": size, "request": past.request, "hold": len(events) < len(times)}
            async with driven(events, clock=lambda now=now: now[0], **options) as (pilot, app, _control):
                now[0] = moment
                app.base_screen.tick()
                await settle(pilot)
                app.save_screenshot(f"{moment:.0f}s-{size[0]}x{size[1]}.svg", path=str(folder))
                rows = await check_figures(pilot)
            print(f"{moment:.0f} s, {size[0]}x{size[1]}: {rows} measured rows, each speed-up the quotient beside it")


if __name__ == "__main__":
    past, folder = open_session(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if moments := [*map(float, sys.argv[3:])]:
        lines = past.path.read_text(encoding="utf-8").splitlines()
        began, *times = (one.get("started", one.get("at")) for one in map(json.loads, lines))
        asyncio.run(draw_moments(past, [at - began for at in times], folder, moments))
    else:
        asyncio.run(draw(past, folder))
