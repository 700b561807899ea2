"""The question on how many GPUs to train: when it is asked, what a person sees, and what each key does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tui_histories as histories
from tui_facts import RESNET
from tui_pilot import drive, screen_text, settle

from advisor.experiment import events
from advisor.records import Mode
from advisor.tui.screens import PickScreen


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


async def test_where_there_are_several_the_person_is_asked_and_the_session_is_told() -> None:
    async def check(pilot, app, control) -> None:
        text = screen_text(app)
        assert "This machine has 6 GPUs" in text
        rows = [text.index(words) for words in ("One GPU", "2 GPUs", "4 GPUs", "All 6 GPUs")]
        assert rows == sorted(rows)
        await pilot.press("down", "down", "down", "enter")
        await settle(pilot)
        assert control.calls[-1] == ("use_gpus", 6)
        assert not isinstance(app.screen, PickScreen)
        told = " ".join(screen_text(app).split())
        assert "measures on 6 GPUs after the search on one" in told
        assert "G GPUs" in screen_text(app).splitlines()[-1]
        await pilot.press("G")
        await settle(pilot)
        assert isinstance(app.screen, PickScreen)
        await pilot.press("home", "enter")
        await settle(pilot)
        assert control.calls[-1] == ("use_gpus", 1)

    await drive(histories.beside_others(6), check, hold=True)


@pytest.mark.parametrize("key", ["enter", "escape"])
async def test_the_first_answer_leaves_the_session_as_it_is(key) -> None:
    async def check(pilot, app, control) -> None:
        assert isinstance(app.screen, PickScreen)
        await pilot.press(key)
        await settle(pilot)
        assert not isinstance(app.screen, PickScreen)
        assert control.calls == [("run",)]

    await drive(histories.beside_others(4), check, hold=True)


@pytest.mark.parametrize(
    "history",
    [
        histories.beside_others(1),
        histories.beside_others(4, replace(RESNET, mode=Mode.INFER)),
        [*histories.beside_others(4)[:3], events.GpusChosen(0), *histories.beside_others(4)[3:]],
    ],
    ids=["one GPU", "inference", "chosen before"],
)
async def test_nobody_is_asked_where_there_is_nothing_to_choose(history) -> None:
    async def check(pilot, app, control) -> None:
        assert not isinstance(app.screen, PickScreen)

    await drive(history, check, hold=True)


async def test_once_several_are_measured_the_key_is_gone() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("escape")
        await settle(pilot)
        app.post_event(events.StageStarted("several GPUs"))
        await settle(pilot)
        await pilot.press("G")
        await settle(pilot)
        assert not isinstance(app.screen, PickScreen)
        assert "G GPUs" not in screen_text(app)

    await drive(histories.beside_others(4), check, hold=True)


async def test_an_answer_that_comes_too_late_is_not_lost_without_a_word() -> None:
    async def check(pilot, app, control) -> None:
        app.post_event(events.StageStarted("done"))
        await settle(pilot)
        await pilot.press("down", "enter")
        await settle(pilot)
        assert control.calls == [("run",)]
        assert "The search on one GPU is over" in " ".join(screen_text(app).split())

    await drive(histories.beside_others(4), check, hold=True)
