"""Draws every view of a recorded session.

    python tests/gpu/screenshots.py resnet50.jsonl screenshots

The arguments: a session's journal, with its folder of logs beside it, and the folder for the pictures.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "tui/app")]

from tui_pilot import driven, press

from advisor.experiment.past.journal import PastSession, open_session

VIEWS = {"result": "1", "profile": "2", "trials": "3 home", "export": "4"}


def session_of(journal: Path) -> PastSession:
    """The session of a journal, read from a state folder of its own."""
    state = Path(tempfile.mkdtemp(), "sessions")
    state.mkdir()
    shutil.copy(journal, state)
    if (logs := journal.with_suffix("")).is_dir():
        shutil.copytree(logs, state / logs.name)
    os.environ["PERF_ADVISOR_STATE"] = str(state.parent)
    return open_session(journal.stem)


async def draw(past: PastSession, folder: Path) -> None:
    """Draw every view, as an app does that has measured the session."""
    async with driven([*past.events], target=past.request.target.target) as (pilot, app, _control):
        app.context.request = past.request
        for name, keys in VIEWS.items():
            await press(pilot, *keys.split())
            app.save_screenshot(f"{name}.svg", path=str(folder))


if __name__ == "__main__":
    journal, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(session_of(journal), folder))
