"""What the app says and draws of objectives, the memory limit, and speed against memory."""

# ruff: noqa: RUF001 - the en dash of an interval

import pytest
import tui_histories as histories
from advisor.tui.toasts import toast_for
from advisor.tui.views.advice_text import effect_facts, front_text, list_entry, nothing_helped
from advisor.tui.views.headline import headline
from advisor.tui.views.overview_facts import note_lines
from tui_fakes import FakeExporter
from tui_histories import GIB
from tui_pilot import SIZES, driven, press, screen_text

from advisor.experiment import events
from advisor.experiment.objective import Goal
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.records import Objective, TargetSpec, Verdict
from advisor.tui.context import Context
from advisor.tui.widgets.status import stack_text


@pytest.fixture
def by_memory() -> SessionState:
    return SessionState.of(histories.by_memory())


def context_of(history):
    return Context(Request(TargetSpec("m:b", "/x")), FakeExporter(), state=SessionState.of(history))


def test_the_front_is_told_in_few_words(by_memory) -> None:
    lines = front_text(SessionState.of(histories.whole())).plain.splitlines()
    assert lines[0].split(maxsplit=4)[:2] == ["3.10", "GiB"]
    assert lines[0].endswith("blocks, bfloat16")
    assert "stack: max-autotune-no-cudagraphs, channels_last, fused, bfloat16" in lines[-1]
    assert front_text(by_memory).plain.splitlines()[0].endswith("stack: blocks, bfloat16")
    assert front_text(SessionState()).plain == ""


def test_with_memory_as_the_objective_the_headline_is_the_memory(by_memory) -> None:
    saved = "Saves 66 % of the memory at 0.941x (0.936–0.946) the speed: 32.6 ms → 34.7 ms a step, confirmed"
    assert headline(by_memory).plain.startswith(saved)
    assert stack_text(by_memory, wide=False).plain == "stack -66 % memory"
    told = [event for event in histories.by_memory() if not isinstance(event, events.StackMeasured)]
    assert headline(SessionState.of(told)).plain.startswith("-32 % memory 1.12x (1.11–1.13)  the best single setting")


def test_a_recommendation_says_what_it_does_by_the_objective(by_memory) -> None:
    item = by_memory.recommendations[0]
    assert "-32 % memory" in list_entry(item, None, by_memory.yardstick, wide=False).plain
    facts = dict(effect_facts(item, context_of(histories.by_memory())))
    assert str(facts["Goal"]) == "saves 32 % of the memory at 1.12x (1.11–1.13) the speed"
    whole = SessionState.of(histories.whole())
    assert "Goal" not in dict(effect_facts(whole.recommendations[0], context_of(histories.whole())))


def test_energy_is_told_where_it_is_the_objective() -> None:
    history = [events.GoalSet(Goal(Objective.ENERGY)), *histories.whole()]
    state = SessionState.of(history)
    best = next(item for item in state.recommendations if item.record.candidate.recipe == "autocast")
    assert "-31 % energy" in list_entry(best, None, state.yardstick, wide=True).plain
    unknown = next(item for item in state.recommendations if item.record.candidate.recipe == "tf32")
    assert "– energy" in list_entry(unknown, None, state.yardstick, wide=True).plain


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal(), "samples per second, within 5 min 00 s"),
        (Goal(Objective.LATENCY), "a shorter step, within 5 min 00 s"),
        (
            Goal(Objective.MEMORY, keep_speed=0.8, memory_limit_bytes=8 * GIB),
            "the smallest peak at 80 % of the speed or more, at most 8.00 GiB, within 5 min 00 s",
        ),
        (Goal(Objective.ENERGY), "fewer joules a sample, within 5 min 00 s"),
    ],
)
def test_the_goal_is_among_the_notes(goal, words) -> None:
    assert note_lines(SessionState(), goal, 300.0)[0] == ("Goal", words)


def test_nothing_that_helps_is_told_by_the_objective() -> None:
    state = SessionState.of(histories.to_trials())
    state.trials = {name: record for name, record in state.trials.items() if record.verdict is not Verdict.FASTER}
    state.trials[histories.ZERO_GRAD.candidate.name] = histories.ZERO_GRAD
    assert nothing_helped(state).startswith("Nothing that was tried is measurably faster.")
    tried = [events.GoalSet(Goal(Objective.ENERGY)), events.BaselineMeasured(histories.BASELINE)]
    tried.append(events.TrialMeasured(histories.ZERO_GRAD))
    assert headline(SessionState.of(tried)).plain.startswith("Nothing takes measurably less energy so far.")


def test_the_toast_of_the_stack_says_what_it_saves() -> None:
    stack = events.StackMeasured(histories.SMALL_STACK)
    toast = toast_for(stack, SessionState.of(event for event in histories.by_memory() if event != stack))
    assert toast.text == "saves 66 % of the memory at 0.941x (0.936–0.946) the speed"


async def test_there_is_no_plot_in_the_place_of_a_list_that_is_empty() -> None:
    async with driven(
        [event for event in histories.to_trials() if not isinstance(event, events.Ranked)], hold=True
    ) as (pilot, app, _control):
        await press(pilot, "4")
        assert "Settings that help appear here" in screen_text(app)
        assert "p Plot" not in screen_text(app)


@pytest.mark.parametrize("size", SIZES)
async def test_the_plot_and_its_front_are_on_the_screen(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        await press(pilot, "4", "p")
        shown = screen_text(app)
        for words in ("Speed against memory", "peak memory, GiB", "3.10 GiB", "blocks, bfloat16", "◆", "─ front"):
            assert words in shown, shown
