"""Draws every view of a recorded session, and a short animated recording of how it went.

    python tests/gpu/screenshots.py resnet50.jsonl screenshots

The arguments: a session's journal, with its folder of logs beside it, and the folder for the pictures. recording.svg
plays the session from its first event to its exports.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "tui/app")]

from stopped_clock import Clock
from tui_pilot import driven, press, tell

from advisor.experiment.events import BlockTimed, Event, RunMeasured, TrialActivity, TrialStarted
from advisor.experiment.past.journal import PastSession, open_session

VIEWS = {"result": "1", "profile": "2", "trials": "3 home", "export": "4"}
# The recording: the share of the events that have come, and the keys that are pressed then.
SCENES = (
    *((share, "1") for share in (0.05, 0.15, 0.3, 0.45)),
    *((0.6, "3"), (0.75, "1"), (0.9, "1")),
    *((1.0, keys) for keys in ("1", "1 down", "2", "3", "4")),
)
SCENE_S = 2.0


def session_of(journal: Path) -> PastSession:
    """The session of a journal, read from a state folder of its own."""
    state = Path(tempfile.mkdtemp(), "sessions")
    state.mkdir()
    shutil.copy(journal, state)
    if (logs := journal.with_suffix("")).is_dir():
        shutil.copytree(logs, state / logs.name)
    os.environ["PERF_ADVISOR_STATE"] = str(state.parent)
    return open_session(journal.stem)


def timed_events(past: PastSession) -> Iterator[tuple[float, Event]]:
    """The events with their seconds, and the blocks put back: a journal has them in the result that follows a trial."""
    lines = map(json.loads, past.path.read_text(encoding="utf-8").splitlines())
    times = [line["at"] for line in lines if "event" in line]
    for place, (at, event) in enumerate(zip(times, past.events, strict=True)):
        yield at, event
        if isinstance(event, TrialStarted):
            yield at, TrialActivity(event.name, "measuring")
            until = times[min(place + 1, len(times) - 1)]
            own = itertools.takewhile(lambda event: not isinstance(event, TrialStarted), past.events[place + 1 :])
            blocks = next((event.result.blocks for event in own if isinstance(event, RunMeasured)), ())
            for number, block in enumerate(blocks, 1):
                timed = BlockTimed(event.name, block.step_ms, block.samples / block.steps)
                yield at + (until - at) * number / len(blocks), timed


async def draw(past: PastSession, folder: Path) -> None:
    """Play the session scene by scene; then draw every view, as an app does that has measured it."""
    events, clock, frames = list(timed_events(past)), Clock(), []
    clock.now = events[0][0]
    async with driven([], hold=True, target=past.request.target.target, clock=clock) as (pilot, app, _control):
        app.context.request = past.request
        told = 0
        for share, keys in SCENES:
            come = events[told : round(share * len(events))]
            for at, event in come[:-1]:
                clock.now = at
                app.context.take(event)
            for at, event in come[-1:]:
                clock.now = at
                await tell(pilot, event)  # which draws them all
            told += len(come)
            await press(pilot, *keys.split())
            frames.append(app.export_screenshot(title=f"perf-advisor {past.request.target.target}"))
        for name, keys in VIEWS.items():
            await press(pilot, *keys.split())
            app.save_screenshot(f"{name}.svg", path=str(folder))
    (folder / "recording.svg").write_text(animated(frames), encoding="utf-8")


def animated(frames: Sequence[str]) -> str:
    """Pictures of one size as one that shows them in turn; the long names in each become short ones of its own."""
    whole_s, share = SCENE_S * len(frames), 100 / len(frames)
    style = (
        f"@keyframes turn {{ 0% {{ visibility: visible }} {share:.4f}%, 100% {{ visibility: hidden }} }} "
        f".frame {{ visibility: hidden; animation: turn {whole_s}s step-end infinite }}"
    )
    view_box = re.search(r'viewBox="([^"]+)"', frames[0])
    assert view_box is not None
    drawn = [re.sub(r"terminal-\d+", f"f{place}", frame[frame.index("<svg") :]) for place, frame in enumerate(frames)]
    parts = [
        f'<g class="frame" style="animation-delay: {place * SCENE_S}s">{frame}</g>'
        for place, frame in enumerate(drawn[:-1])
    ]
    parts.insert(0, drawn[-1])  # seen when no other is, and where nothing moves
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box[1]}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"


def main() -> None:
    """All pictures into the folder."""
    journal, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(session_of(journal), folder))


if __name__ == "__main__":
    main()
