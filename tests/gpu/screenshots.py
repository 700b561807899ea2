"""Runs a real session in the app and saves a screenshot of each view.

    python tests/gpu/screenshots.py torchvision.models:resnet50 64 180 screenshots
    python tests/gpu/screenshots.py resnet50.jsonl screenshots

The arguments: target, batch size, budget in seconds, folder; or the journal of a session that ran elsewhere, whose
events the app then gets in their order, and the folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from advisor.experiment import events
from advisor.experiment.journal import open_session
from advisor.experiment.request import Request
from advisor.recipe.catalog import load_catalog
from advisor.records import TargetSpec
from advisor.records.outputs import Outputs
from advisor.tui.app import AdvisorApp
from advisor.tui.launch import FileExporter, open_app

SIZES = {"": (120, 36), "-80x24": (80, 24)}
VIEWS = ("overview", "profile", "trials", "advice", "export")
FEWEST_TRIALS, TRIALS_WHILE_RUNNING = 3, 12


class Recorded:
    """A session whose events were kept: as a control it posts them, and waits in the middle to be looked at."""

    def __init__(self, past, post):
        self.past, self.post = past, post
        self.looked_at = threading.Event()

    def run(self):
        measured = 0
        for event in self.past.events:
            measured += isinstance(event, events.TrialMeasured)
            if measured == TRIALS_WHILE_RUNNING:
                self.looked_at.wait()
            self.post(event)

    def cancel(self):
        self.looked_at.set()


async def main() -> None:
    folder = sys.argv[-1]
    Path(folder).mkdir(parents=True, exist_ok=True)
    app = app_over(sys.argv[1]) if sys.argv[1].endswith(".jsonl") else app_of(*sys.argv[1:4])
    async with app.run_test(size=SIZES[""]) as pilot:
        await save_trials_while_they_run(app, pilot, folder)
        while app.context.state.finished is None:
            await pilot.pause(0.5)
        await pilot.pause(6.0)  # the toasts leave
        for suffix, (width, height) in SIZES.items():
            await pilot.resize_terminal(width, height)
            await save_views(app, pilot, folder, suffix)
        await pilot.press("q")


def app_of(target, batch_size, budget_s):
    target = TargetSpec(target, str(Path.cwd()), batch_size=int(batch_size) or None)
    return open_app(Request(target, budget_s=float(budget_s)), Outputs())


def app_over(journal):
    """The app over a session that was recorded; it is read from a state folder of its own."""
    state = Path(tempfile.mkdtemp(), "sessions")
    state.mkdir()
    shutil.copy(journal, state)
    os.environ["PERF_ADVISOR_STATE"] = str(state.parent)
    past = open_session(Path(journal).stem)
    app = AdvisorApp(past.request, FileExporter(past.request, Outputs()), load_catalog=load_catalog)
    app.recorded = Recorded(past, app.post_event)
    app.attach(app.recorded, session_id=past.session_id)
    return app


async def save_trials_while_they_run(app, pilot, folder) -> None:
    recorded = getattr(app, "recorded", None)
    while len(app.context.state.trials) < FEWEST_TRIALS and app.context.state.finished is None:
        await pilot.pause(0.5)
    await pilot.press("3")
    if recorded:
        await pilot.press("l")  # the trials' logs are elsewhere
    await pilot.pause(1.0)
    app.save_screenshot("running.svg", path=folder)
    if recorded:
        recorded.looked_at.set()


async def save_views(app, pilot, folder, suffix) -> None:
    for number, view in enumerate(VIEWS, start=1):
        await pilot.press(str(number))
        await pilot.pause(1.0)
        app.save_screenshot(f"{view}{suffix}.svg", path=folder)


if __name__ == "__main__":
    asyncio.run(main())
