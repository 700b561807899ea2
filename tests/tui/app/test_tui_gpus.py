"""The question on how many GPUs to train: when it is asked, what a person sees, and what each key does."""

from dataclasses import replace

import pytest
import tui_histories as histories
from tui_facts import RESNET
from tui_pilot import driven, press, screen_text, settle

from advisor.experiment import events
from advisor.records import Mode
from advisor.tui.screens import PickScreen


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


async def test_where_there_are_several_the_person_is_asked_and_the_session_is_told() -> None:
    async with driven(histories.beside_others(6), hold=True) as (pilot, app, control):
        text = screen_text(app)
        assert "This machine has 6 GPUs" in text
        rows = [text.index(words) for words in ("One GPU", "2 GPUs", "4 GPUs", "All 6 GPUs")]
        assert rows == sorted(rows)
        await press(pilot, "down", "down", "down", "enter")
        assert control.calls[-1] == ("use_gpus", 6)
        assert not isinstance(app.screen, PickScreen)
        told = " ".join(screen_text(app).split())
        assert "Measuring on 6 GPUs after the search on one" in told
        assert "G GPUs" in screen_text(app).splitlines()[-1]
        await press(pilot, "G")
        assert isinstance(app.screen, PickScreen)
        await press(pilot, "home", "enter")
        assert control.calls[-1] == ("use_gpus", 1)


@pytest.mark.parametrize("key", ["enter", "escape"])
async def test_the_first_answer_leaves_the_session_as_it_is(key) -> None:
    async with driven(histories.beside_others(4), hold=True) as (pilot, app, control):
        assert isinstance(app.screen, PickScreen)
        await press(pilot, key)
        assert not isinstance(app.screen, PickScreen)
        assert control.calls == [("run",)]


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
    async with driven(history, hold=True) as (_pilot, app, _control):
        assert not isinstance(app.screen, PickScreen)


async def test_once_several_are_measured_the_key_is_gone() -> None:
    async with driven(histories.beside_others(4), hold=True) as (pilot, app, _control):
        await press(pilot, "escape")
        app.post_event(events.StageStarted("several GPUs"))
        await settle(pilot)
        await press(pilot, "G")
        assert not isinstance(app.screen, PickScreen)
        assert "G GPUs" not in screen_text(app)


async def test_an_answer_that_comes_too_late_is_not_lost_without_a_word() -> None:
    async with driven(histories.beside_others(4), hold=True) as (pilot, app, control):
        app.post_event(events.StageStarted("done"))
        await settle(pilot)
        await press(pilot, "down", "enter")
        assert control.calls == [("run",)]
        assert "The search on one GPU is over" in " ".join(screen_text(app).split())
