"""Draws every view of a recorded session, and a short animated recording of how it went.

    python tests/gpu/screenshots.py resnet50.jsonl screenshots

The arguments: a session's journal, with its folder of logs beside it, and the folder for the pictures. Each view is
drawn at 120x36 and at 80x24; recording.svg plays the session from its first event to its exports.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from advisor.experiment.events import BlockTimed, Event, RunMeasured, TrialActivity, TrialStarted
from advisor.experiment.outputs import Outputs
from advisor.experiment.past.journal import PastSession, open_session
from advisor.recipe.catalog import load_catalog
from advisor.records import Block
from advisor.tui.app import AdvisorApp

SIZES = {"": (120, 36), "-80x24": (80, 24)}
VIEWS = {"result": "1", "profile": "2", "trials": "3 home", "export": "4"}
# The recording: the share of the events that have come, and the keys that are pressed then.
SCENES = (
    (0.05, "1"),
    (0.15, "1"),
    (0.3, "1"),
    (0.45, "1"),
    (0.6, "3"),
    (0.75, "1"),
    (0.9, "1"),
    (1.0, "1"),
    (1.0, "1 down"),
    (1.0, "2"),
    (1.0, "3"),
    (1.0, "4"),
)
RUNNING = 0.6
SCENE_S = 2.0


class Replay:
    """A session whose events were kept: as a control it posts them, as far as it may go.

    ``clock`` is the session's own, in seconds: the time of the event that was posted last.
    """

    def __init__(self, past: PastSession) -> None:
        timed = list(with_blocks(past.events, times_of(past)))
        self._events, self._times = [event for event, _ in timed], [at for _, at in timed]
        self.post: Callable[[Event], None] = lambda event: None
        self._may_go = threading.Condition()
        self._until, self._posted, self._ends = 0, 0, False

    def run(self) -> None:
        """Post the events, waiting wherever it is held."""
        for place, event in enumerate(self._events):
            with self._may_go:
                self._may_go.wait_for(lambda place=place: place < self._until or self._ends)
                if self._ends:
                    return
            self._posted = place + 1
            self.post(event)

    def clock(self) -> float:
        """The time of the event that was posted last."""
        return self._times[max(0, self._posted - 1)]

    def go(self, share: float) -> None:
        """Let it go on until this share of the events has been posted."""
        with self._may_go:
            self._until = max(self._until, self._place(share))
            self._may_go.notify()

    def _place(self, share: float) -> int:
        """How many events have come then; in the middle, up to the next trial whose blocks have all been timed."""
        wanted = round(share * len(self._events))
        ends = (
            place + 1
            for place, (event, after) in enumerate(itertools.pairwise(self._events))
            if isinstance(event, BlockTimed) and not isinstance(after, BlockTimed)
        )
        return wanted if share == 1.0 else next((place for place in ends if place >= wanted), wanted)

    @property
    def arrived(self) -> bool:
        """Whether it is where it may be."""
        return self._posted >= self._until

    def cancel(self) -> None:
        """End it."""
        with self._may_go:
            self._ends = True
            self._may_go.notify()


def times_of(past: PastSession) -> list[float]:
    """When each event of a session came, in seconds."""
    lines = map(json.loads, past.path.read_text(encoding="utf-8").splitlines())
    return [line["at"] for line in lines if "event" in line]


def with_blocks(events: Sequence[Event], times: Sequence[float]) -> Iterator[tuple[Event, float]]:
    """The events and their times, with the blocks put back: a journal has them in the result that follows a trial."""
    for place, (event, at) in enumerate(zip(events, times, strict=True)):
        yield event, at
        if isinstance(event, TrialStarted):
            yield TrialActivity(event.name, "measuring"), at
            blocks = _blocks_after(events[place + 1 :])
            until = times[place + 1] if blocks else at
            for number, block in enumerate(blocks, 1):
                timed = BlockTimed(event.name, block.step_ms, block.samples / block.steps)
                yield timed, at + (until - at) * number / len(blocks)


def _blocks_after(events: Sequence[Event]) -> Sequence[Block]:
    """The blocks of the trial that has just begun; none where its result is not among them."""
    own = itertools.takewhile(lambda event: not isinstance(event, TrialStarted), events)
    return next((event.result.blocks for event in own if isinstance(event, RunMeasured)), ())


def app_over(past: PastSession) -> tuple[AdvisorApp, Replay]:
    """The app over a session that is replayed, and the replay."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # or the app asks on how many of the recorded machine's GPUs to train
    replay = Replay(past)
    app = AdvisorApp(past.request, Outputs(), load_catalog=load_catalog, clock=replay.clock)
    app.animation_level = "none"
    replay.post = app.post_event
    app.attach(lambda: replay, session_id=past.session_id)
    return app, replay


def session_of(journal: Path) -> PastSession:
    """The session of a journal, read from a state folder of its own."""
    state = Path(tempfile.mkdtemp(), "sessions")
    state.mkdir()
    shutil.copy(journal, state)
    if (logs := journal.with_suffix("")).is_dir():
        shutil.copytree(logs, state / logs.name)
    os.environ["PERF_ADVISOR_STATE"] = str(state.parent)
    return open_session(journal.stem)


async def show(pilot, keys: str) -> None:
    """Press the keys of a view."""
    for key in keys.split():
        await pilot.press(key)
    await pilot.pause(0.7)


async def draw_views(past: PastSession, folder: Path, suffix: str, size: tuple[int, int]) -> None:
    """Every view at one size, and the result while they run."""
    app, replay = app_over(past)
    async with app.run_test(size=size) as pilot:
        await arrive(replay, RUNNING, pilot)
        await show(pilot, "1")
        app.save_screenshot(f"running{suffix}.svg", path=str(folder))
        await arrive(replay, 1.0, pilot)
        for name, keys in VIEWS.items():
            await show(pilot, keys)
            app.save_screenshot(f"{name}{suffix}.svg", path=str(folder))
        replay.cancel()


async def arrive(replay: Replay, share: float, pilot) -> None:
    """Have the replay go on, and wait until it is there and drawn."""
    replay.go(share)
    while not replay.arrived:
        await pilot.pause(0.05)
    await pilot.pause(0.5)


async def record(past: PastSession, folder: Path) -> None:
    """The recording."""
    app, replay = app_over(past)
    frames = []
    async with app.run_test(size=SIZES[""]) as pilot:
        for share, keys in SCENES:
            await arrive(replay, share, pilot)
            await show(pilot, keys)
            frames.append(app.export_screenshot(title=f"perf-advisor {past.request.target.target}"))
        replay.cancel()
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
    past = session_of(journal)
    for suffix, size in SIZES.items():
        asyncio.run(draw_views(past, folder, suffix, size))
    asyncio.run(record(past, folder))


if __name__ == "__main__":
    main()
