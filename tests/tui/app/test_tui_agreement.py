"""What the app says in one place agrees with what happens, and with what it says in another."""

# ruff: noqa: RUF001 - the en dash of an interval

import re
from dataclasses import replace

import pytest
import tui_histories as histories
from sample_session import CONTRIBUTION, stacked_state
from textual.widgets import OptionList
from textual.widgets._toast import Toast
from tui_pilot import SIZES, SMALL, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.records import Numerics, NumericsResult, Outcome, StackRecord, TrialRecord, TrialResult
from advisor.report.pareto import STACK
from advisor.tui.context import Context
from advisor.tui.result import result_of
from advisor.tui.screens import help_sections
from advisor.tui.views import VIEWS
from advisor.tui.views.advice_text import effect_facts, list_entry, nothing_helped
from advisor.tui.views.headline import headline
from advisor.tui.views.overview_facts import step_now
from advisor.tui.views.trial_rows import build_rows, tally
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.status import StatusBar, far_text, now_text, stack_text

SHORT_OF_TIME = "it needs about 17 s, and the budget has 3 s left"
NAME = histories.LAST.candidate.name


def skipped() -> TrialRecord:
    return replace(
        histories.LAST,
        result=TrialResult(Outcome.SKIPPED, SHORT_OF_TIME),
        comparison=None,
        numerics=None,
    )


def without_a_trial() -> SessionState:
    """A session whose budget was enough for the baseline and the control only."""
    history = [event for event in histories.to_trials() if not isinstance(event, (events.TrialMeasured, events.Ranked))]
    history += [events.TrialMeasured(histories.CONTROL), events.TrialMeasured(skipped())]
    return SessionState.of([*history, events.SessionFinished(cancelled=False, session_s=60.0)])


def test_where_nothing_was_tried_the_settings_are_not_called_good() -> None:
    state = without_a_trial()
    assert headline(state).plain.startswith("Nothing could be judged: no candidate was tried.\n")
    assert "key + adds a minute.\n1 candidate had no time: R tries them" in headline(state).plain
    assert "bold $warning" in [str(span.style) for span in headline(state).spans]
    assert nothing_helped(state).startswith("Nothing could be judged: no candidate was tried. 1 could not be tried: R")
    state.trials[histories.ZERO_GRAD.candidate.name] = histories.ZERO_GRAD
    assert headline(state).plain.startswith("Nothing that was tried is measurably faster.\n")
    assert nothing_helped(state).startswith("Nothing that was tried is measurably faster.")
    assert "1 candidate had no time: R tries them" in headline(state).plain
    assert "1 more could not be tried" in nothing_helped(state)


def test_numerics_that_were_not_compared_and_a_short_start_are_told_once(context) -> None:
    numerics = NumericsResult(Numerics.CHANGED, Numerics.CHANGED, None, "other batches", compared=False)
    item = next(item for item in SessionState.of(histories.whole()).recommendations if item.record.alone)
    result = replace(item.record.result, prepare_s=0.004, warmup_s=0.2)
    record = replace(item.record, numerics=numerics, result=result, break_even_steps=0)
    facts = {label: str(text) for label, text in effect_facts(replace(item, record=record), context) if label}
    assert facts["Numerics"] == "not compared, declared changed"
    assert facts["Cost"] == "no start-up cost"


@pytest.mark.parametrize(
    ("known", "shown", "signs"),
    [(CONTRIBUTION, "+1.20x (1.15–1.25) on the stack", "▲"), (None, "not measured alone", "★")],
)
def test_no_figure_of_the_whole_stack_is_shown_as_a_candidates_own(context, known, shown, signs) -> None:
    state = stacked_state(known)
    name = "channels_last=channels_last"
    (row,) = [row for row in build_rows(state) if row.key == name]
    assert row.cells["effect"].plain == shown
    assert row.cells["state"].plain == signs
    assert {row.cells[column].plain for column in ("step", "memory", "start")} == {"–"}
    item = next(item for item in state.recommendations if item.record.candidate.name == name)
    entry = list_entry(item, None, state.yardstick, wide=True).plain
    facts = "\n".join(f"{label} {text}" for label, text in effect_facts(item, replace(context, state=state)))
    for told in (entry, facts, selection_text(name, state).plain):
        assert shown in told
        assert "98" not in told
        assert "9.8" not in told
        assert "memory –" not in told, "what is not known is left out"


def test_a_stack_that_is_not_confirmed_is_marked_wherever_its_figure_stands() -> None:
    state = SessionState.of(histories.whole())
    state.stack = replace(state.stack, confirmed=False, comparison=replace(state.stack.comparison, paired=False))
    (row,) = [row for row in build_rows(state) if row.key == STACK]
    assert row.cells["name"].plain.endswith(", once")
    figures = (headline(state), selection_text(STACK, state), stack_text(state, wide=True))
    assert all("measured once" in figure.plain for figure in figures)
    state.stack = replace(state.stack, confirmed=True)
    assert "measured once" not in headline(state).plain


def test_a_stack_whose_settings_were_not_tried_alone_is_not_denied_by_the_advice() -> None:
    state = without_a_trial()
    state.apply(events.StackMeasured(histories.STACK))
    assert headline(state).plain.startswith("2.35x")
    assert nothing_helped(state).startswith("No setting is recommended alone. View 3 shows the stack")


def test_a_skipped_trial_is_not_tried_again_but_for_the_first_time() -> None:
    state = without_a_trial()
    told = selection_text(NAME, state).plain
    assert SHORT_OF_TIME in told
    assert "Key t tries it, " in told
    assert "again" not in told
    assert "its log" not in told


@pytest.mark.parametrize("log_path", ["", "/logs/graph"])
def test_a_log_is_offered_only_where_there_is_one(log_path) -> None:
    record = replace(histories.GRAPH, result=replace(histories.GRAPH.result, hint="", log_path=log_path))
    state = SessionState.of([*histories.whole(), events.TrialMeasured(record)])
    state.logs.clear()
    told = selection_text(record.candidate.name, state).plain
    assert "Key t tries it again" in told
    assert ("l shows its log" in told) is bool(log_path)


def test_a_trial_that_runs_again_is_told_by_what_it_does() -> None:
    state = without_a_trial()
    state.apply(events.TrialStarted(NAME, "/logs/again"))
    state.apply(events.TrialActivity(NAME, "warming up"))
    assert selection_text(NAME, state).plain == f"{NAME}\nrunning: warming up"


def test_the_status_names_a_trial_that_is_tried_again_once(context) -> None:
    context.state = without_a_trial()
    context.state.apply(events.TrialStarted(NAME, ""))
    context.state.apply(events.TrialActivity(NAME, "warming up"))
    context.busy_with = f"Trying {NAME} again"
    assert now_text(context).plain == f"Trying {NAME} again  warming up  0 s"


@pytest.fixture
def context() -> Context:
    from tui_fakes import FakeExporter

    from advisor.experiment.request import Request
    from advisor.records import TargetSpec

    return Context(Request(TargetSpec("m:b", "/x")), FakeExporter())


def test_a_stack_of_nothing_has_no_row() -> None:
    state = SessionState.of(histories.whole())
    assert STACK in [row.key for row in build_rows(state)]
    state.apply(events.StackMeasured(StackRecord({}, histories.BASELINE.result)))
    assert STACK not in [row.key for row in build_rows(state)]


def test_the_closing_words_count_the_trials_as_the_app_did() -> None:
    state = without_a_trial()
    assert tally(state, wide=True).plain.startswith("0 of "), "the control is nobody's candidate"
    assert result_of(state, "1").lines[0] == "The baseline is kept in session 1."
    state.apply(events.TrialMeasured(histories.ZERO_GRAD))
    assert tally(state, wide=True).plain.startswith("1 of ")
    assert result_of(state, "1").lines[0] == "The baseline and 1 trial are kept in session 1."


def test_before_the_plan_nothing_is_counted() -> None:
    state = SessionState.of([events.StageStarted("baseline"), events.TrialStarted("baseline", "")])
    assert tally(state, wide=True).plain == "Nothing has been tried yet."


@pytest.mark.parametrize(
    ("activity", "head"),
    [
        (events.BUILDING, "The model is being loaded…"),
        ("starting", "The model is being loaded…"),
        ("loading the model", "The model is being loaded…"),
        ("first steps", "The baseline is being measured…"),
        ("warming up", "The baseline is being measured…"),
    ],
)
def test_the_headline_agrees_with_what_the_first_trial_does(activity, head) -> None:
    state = SessionState.of([events.StageStarted("baseline"), events.TrialStarted("baseline", "")])
    state.apply(events.TrialActivity("baseline", activity))
    assert headline(state).plain.startswith(head)
    assert state.is_loading is (step_now(state) == "load") is ("loaded" in head)


def test_what_is_built_before_the_first_trial_is_no_baseline_yet(context) -> None:
    context.state = SessionState.of(
        [events.StageStarted("baseline"), events.TrialActivity("baseline", events.BUILDING)]
    )
    assert now_text(context).plain == "Loading the model"
    context.state.apply(events.TrialStarted("baseline", ""))
    context.state.apply(events.TrialActivity("baseline", "warming up"))
    assert now_text(context).plain.startswith("Measuring the baseline  warming up")
    assert now_text(context, 35).plain.startswith("baseline  warming up"), "no word is cut"


def test_no_mark_of_the_help_is_parted_from_its_word() -> None:
    marks = next(text for title, text in help_sections(VIEWS[0], {}) if title == "Marks")
    assert [line.plain.split(" ", 1)[0] for line in marks.wrap(68)] == list("▲▼=≈✗○★≠!⇄⧗")


@pytest.mark.parametrize("size", SIZES)
async def test_toasts_leave_the_status_and_the_keys_to_be_read(size) -> None:
    async with driven(histories.whole(), size=size) as (_pilot, app, _control):
        toasts = list(app.screen.query(Toast))
        assert toasts
        status = app.query_one(StatusBar).region
        assert all(toast.region.bottom <= status.y for toast in toasts)


async def test_what_a_format_is_can_be_read_to_its_end_where_the_list_is_narrow() -> None:
    async with driven(histories.whole(), size=SMALL, toasts=False) as (pilot, app, _control):
        await pilot.press("5")
        formats = app.query_one("#formats", OptionList)
        words = "The same in plain PyTorch, without perf-advisor"
        formats.replace_option_prompt("python", f"Python file\n{words}")
        await settle(pilot)
        left = [line[1 : formats.size.width + 1].strip() for line in screen_text(app).splitlines()]
        assert words in " ".join(left)


async def test_a_trial_that_is_stopped_is_not_called_the_stack() -> None:
    async with driven(histories.whole(), toasts=False) as (pilot, app, control):
        control.retry = lambda name: control._wait_for(control._stopped)
        await press(pilot, "3", "down", "down", "t")
        await press(pilot, "x")
        assert ("stop",) in control.calls
        shown = screen_text(app)
        assert "Stopped. Key t tries it again." in shown
        assert "on the stack in view 3" not in shown


def test_one_trial_after_the_session_has_no_progress_to_show(context) -> None:
    context.state = without_a_trial()
    context.take(events.ProgressMade(1.0, 0.0))
    context.take(events.TrialStarted(NAME, ""))
    assert "left" not in far_text(context, working=True, wide=True).plain
    context.countdown.begin_anew()  # as when more is asked for
    context.take(events.ProgressMade(0.25, 30.0))
    assert "0:30 left" in far_text(context, working=True, wide=True).plain


@pytest.mark.parametrize("size", SIZES)
async def test_no_toast_covers_a_question(size) -> None:
    async with driven(histories.to_trials(), hold=True, size=size) as (pilot, app, _control):
        app.notify("a notice that is long enough to take several lines of a narrow screen " * 3)
        await settle(pilot)
        await press(pilot, "q")
        assert "Keep measuring" in screen_text(app)
        assert not list(app.screen.query(Toast))


@pytest.mark.parametrize("size", [*SIZES, (40, 10)])
async def test_the_end_of_the_status_stays_as_it_is_while_a_trial_runs(size) -> None:
    name, activities = "stack, in turn with the baseline", ("starting", "warming up", "measuring")
    history = [*histories.contributed()[:-1], events.TrialStarted(name, "")]
    lines = []
    async with driven(history, hold=True, size=size, toasts=False) as (pilot, app, _control):
        for activity in activities:
            app.post_event(events.TrialActivity(name, activity))
            await settle(pilot)
            lines.append(screen_text(app).splitlines()[-2])
    assert all(name in line for line in lines) == (size in SIZES), lines
    assert all(f"  {activity}  " in line for activity, line in zip(activities, lines, strict=True)), lines
    assert all(" s  " in line for line in lines) == (size in SIZES), "what it does comes before its seconds"
    ends = {
        line.partition(activity)[2].replace(" 0 s", "").strip()
        for activity, line in zip(activities, lines, strict=True)
    }
    assert len({re.sub(r"\d:\d\d", "", end) for end in ends}) == 1, lines
