"""The app under Textual's pilot: views, decisions, exports, failures, quitting."""

import pytest
import sample_session
import tui_histories as histories
from msgspec import structs
from sample_session import failed_trial, trial_of
from textual.binding import Binding
from textual.command import CommandList, CommandPalette
from textual.widgets import Input, OptionList
from tui_pilot import (
    KEYS,
    SIZES,
    SMALL,
    choose,
    driven,
    make_app,
    pane_text,
    press,
    screen_text,
    setting_cell,
    settle,
    tell,
    until,
)

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.records import Outcome, TrialResult
from advisor.tui.app import AdvisorApp
from advisor.tui.context import Context, closing_words
from advisor.tui.screens import Palette, TextScreen
from advisor.tui.theme import ThemedApp
from advisor.tui.views import VIEWS
from advisor.tui.views.export import ChoiceList
from advisor.tui.widgets.lines import KeyFooter
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import LogTail, TextPane


@pytest.mark.parametrize("size", SIZES)
async def test_every_view_is_a_number_key_or_a_click_away_and_q_leaves(size) -> None:
    expected = {
        "result": ["faster: 26.3 → 13.4 ms a step", "compute-heavy", "all 4 together", "channels_last", "5.47 GiB"],
        "profile": ["backward", "59 %", "11.6 ms", "cudnn_convol", "host"],
        "trials": ["channels_last", "measured", "out of memory", "18.9 ms", "9.13 GiB"],
        "export": ["Settings (YAML)", "model.memory_format: channels_last", "tuned.yaml", "Save"],
    }
    assert set(expected) == {info.title.lower() for info in VIEWS}

    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        for info in VIEWS:
            await press(pilot, info.number)
            assert app.view.id == info.title.lower()
            shown = screen_text(app)
            assert [text for text in expected[info.title.lower()] if text not in shown] == [], shown
        await pilot.click("#nav", offset=(screen_text(app).index("3 Trials"), 0))
        assert app.view.id == "trials", "tabs take the mouse"
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize(
    "history",
    [
        [],
        histories.start(),
        histories.to_trials(),
        sample_session.cpu_history(),
        [*histories.start(), events.SessionFailed("out of memory", "Try a smaller batch.", "", 3)],
        histories.whole(),
        sample_session.cancelled_history(),
    ],
)
async def test_every_view_draws_at_every_stage_on_small_screens(history) -> None:
    async with driven(history, hold=True) as (pilot, app, _control):
        if isinstance(app.screen, TextScreen):
            await pilot.press("escape")
        for size in ((40, 10), SMALL):
            await pilot.resize_terminal(*size)
            for info in reversed(VIEWS):
                await press(pilot, info.number)
                assert app.view.id == info.title.lower()
                lines = screen_text(app).splitlines()
                assert (len(lines), {len(line) <= size[0] for line in lines}) == (size[1], {True})
                said = ("Done", "left", "cannot go on", histories.RUNNING[:8], "Measuring", "Loading", "interrupted")
                assert any(word in lines[-2] for word in said), lines[-2]
                assert info.title != "Export" or "Settings (YAML)" in screen_text(app), (
                    "next steps leave room for formats"
                )
            assert app.query_one("#rows").size.height >= 2


async def test_retry_from_the_result_and_from_the_trials() -> None:
    async with driven(histories.whole()) as (pilot, _app, control):
        await press(pilot, "down", "t")
        assert control.calls[-1] == ("retry", histories.LAST.candidate.name)
        await press(pilot, "3")
        await choose(pilot, histories.AUTOCAST.candidate.name)
        await press(pilot, "t")
        assert control.calls[-1] == ("retry", histories.AUTOCAST.candidate.name)


async def test_rows_follow_the_running_trial() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, _control):
        name = histories.RUNNING
        assert setting_cell(app, name) == "running"
        await press(pilot, "3")
        table = app.query_one("#trials-table", Table)
        assert (table.cursor_key, table.get_cell(name, "outcome").plain) == (name, "running")
        app.post_event(events.TrialActivity(name, "measuring [/]"))
        app.post_event(events.BlockTimed(name, 111.0))
        app.base_screen.tick()
        await settle(pilot)
        assert "measuring [/]" in screen_text(app)
        assert table.get_cell(name, "step").plain == "111 ms", "it follows the blocks"
        await tell(pilot, events.TrialMeasured(histories.BATCH))
        assert table.get_cell(name, "outcome").plain == "measured"
        await press(pilot, "1")
        assert setting_cell(app, name) == "1.16x"


async def test_the_log_is_plain_text_and_grows(tmp_path) -> None:
    log = tmp_path / "trial.log"
    log.write_text("\x1b[31mcompiling [red] [/]\x1b[0m\nstep 1\rstep 2\n")

    history = [events.TrialStarted("baseline", str(log))]
    async with driven(history, size=SMALL, hold=True) as (pilot, app, _control):
        await press(pilot, "3")
        assert "compiling" not in screen_text(app), "a small screen shows the log alone"
        await press(pilot, "l")
        tail = app.query_one(LogTail)
        assert list(tail.lines)[:2] == ["compiling [red] [/]", "step 2"]
        log.write_text(log.read_text() + "done\n")
        tail.poll()
        assert "done" in list(tail.lines)
        assert tail.has_focus
        await press(pilot, "escape")
        assert "compiling" not in screen_text(app)
        assert app.focused.id == "trials-table"


async def test_a_failure_is_a_panel_and_an_exit_code() -> None:
    async with driven(histories.failure()) as (pilot, app, _control):
        assert isinstance(app.screen, TextScreen)
        shown = screen_text(app)
        assert "mymodel has no 'build' [/]" in shown
        assert "Write mymodel:make." in shown
        assert "KeyError: '[red]'" in shown
        await pilot.press("escape")
        assert not isinstance(app.screen, TextScreen)
        assert "mymodel has no 'build' [/]" in screen_text(app)
        await pilot.press("q")
    assert app.return_code == 3
    assert list(closing_words(app.context)) == []


async def test_an_exception_of_the_session_is_a_panel_too() -> None:
    app, control = make_app(histories.to_trials())
    control.error = RuntimeError("[bold] oops")
    async with app.run_test(size=SMALL) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, TextScreen)
        assert "RuntimeError: [bold] oops" in screen_text(app)
        await pilot.press("q")
    assert app.return_code == 1


@pytest.mark.parametrize(
    "keys",
    [["q", "q"], ["q", "y"], ["ctrl+q"], ["ctrl+c"], ["q", "ctrl+c"], ["4", "f", "ctrl+c"], ["ctrl+p", "ctrl+q"]],
)
async def test_quitting_cancels_and_says_what_is_kept(keys) -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        await press(pilot, *keys)
        assert ("cancel",) in control.calls
    assert app.return_code == 130
    assert tuple(closing_words(app.context)) == (
        "The baseline and 8 trials are kept in session 20261122-154141.",
        "Open it again with: perf-advisor open 20261122-154141",
        "Go on with: perf-advisor --resume 20261122-154141",
    )


# Markup that is whole, and some that is broken.
@pytest.mark.parametrize("nasty", ["[red] \\[x] [@click=app.quit]x[/]", "[/] [bold"])
async def test_user_text_is_never_markup(nasty) -> None:
    wrong = TrialResult(Outcome.FAILED, f"{nasty} is wrong", nasty)
    record = failed_trial("batch_size", "data.batch_size", nasty, wrong)
    faster = trial_of("autocast", "precision.autocast", nasty, histories.BASELINE, 17.54, (1.5, 1.49, 1.51), None)
    planned, skipped = events.TrialsPlanned, {nasty: f"because of {nasty}"}
    history = [
        *(structs.replace(one, skipped=skipped) if isinstance(one, planned) else one for one in histories.whole()[:-1]),
        events.TrialMeasured(record),
        events.TrialStarted(f"combination {nasty}", ""),
        events.TrialActivity(f"combination {nasty}", nasty),
        events.Ranked(histories.recommendations([faster])),
        events.Said(f"a remark {nasty}", "warning"),
        events.SessionFinished(False, 1.0),
    ]

    async with driven(history, target=f"{nasty}:build") as (pilot, app, _control):
        assert f"{nasty}:build" in screen_text(app)
        for info in VIEWS:
            await press(pilot, info.number)

        await press(pilot, "1")
        await choose(pilot, "yours")
        assert f"A remark {nasty}" in " ".join(pane_text(app.query_one("#card")).split())
        await press(pilot, "end")
        assert f"{nasty}: because of {nasty}" in " ".join(pane_text(app.query_one("#card")).split())


@pytest.mark.parametrize("history", [histories.whole, histories.to_trials, histories.start])
async def test_help_lists_the_keys_that_do_something_now_and_no_others(history) -> None:
    async with driven(history(), hold=history is not histories.whole) as (pilot, app, _control):
        for view in VIEWS:
            await press(pilot, view.number)
            able = {active.binding.id for active in app.screen.active_bindings.values() if active.enabled}
            footer = {key.id for key in app.screen.query_one(KeyFooter).keys} - {"app.help", "app.quit"}
            await press(pilot, "question_mark")
            assert isinstance(app.screen, TextScreen)
            text = " ".join(pane_text(app.screen.query_one(TextPane)).split())
            assert {key.id for key in KEYS if key.binding.tooltip in text} == {key.id for key in KEYS} & able
            assert footer <= able
            assert "95 % if it was measured in turn" in text
            await pilot.press("escape")
            assert not isinstance(app.screen, TextScreen)


async def test_a_page_is_turned_only_in_a_list_that_is_laid_out() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "4")
        choices = ChoiceList(*"abc")
        app.screen.mount(choices)
        choices.highlighted = 0
        with pytest.raises(KeyError):
            OptionList.action_page_down(choices)  # where Textual allows this, ChoiceList need not turn pages itself
        choices.action_page_down()
        await press(pilot, "pagedown")
        formats = app.view.query_one("#formats", ChoiceList)
        assert formats.highlighted == formats.option_count - 1 == 4
        await press(pilot, "ctrl+p")
        assert isinstance(app.screen, Palette)
        await press(pilot, "pagedown", "pageup", "escape")
        assert app.view.id == "export"


async def test_the_palette_depends_on_the_view() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        await press(pilot, "2")
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert "Theme" in titles
        assert not any(title == "Accept" for title in titles)
        await press(pilot, "1")
        await choose(pilot, "tf32=high")
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        assert "1 min more" in commands, "it is not about the selected recommendation"
        await commands["Accept"].callback()
        await settle(pilot)
        assert ("decide", "tf32", Decision.ACCEPTED) in control.calls
        await press(pilot, "ctrl+p")
        assert "Go to Profile" in screen_text(app)


@pytest.mark.usefixtures("own_state")
async def test_the_palette_changes_the_theme() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        {command.title: command for command in app.get_system_commands(app.screen)}["Theme"].callback()
        await settle(pilot)
        app.screen.query_one(Input).value = "nord"
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count == 1)
        await press(pilot, "enter", *(["enter"] if isinstance(app.screen, CommandPalette) else []))
        assert app.theme == "nord"
        assert ThemedApp().theme == "nord", "it is remembered"


def closing(state: SessionState) -> list[str]:
    return list(closing_words(Context(sample_session.sample_request(), Outputs(), "1", state=state)))


def test_the_closing_words_have_the_result_and_count_the_trials() -> None:
    state = SessionState.of([event for event in histories.to_trials() if not isinstance(event, events.TrialMeasured)])
    state.apply(events.TrialMeasured(histories.CONTROL))
    assert closing(state)[0] == "The baseline is kept in session 1.", "the control is nobody's candidate"
    state.apply(events.TrialMeasured(histories.ZERO_GRAD))
    assert closing(state)[0] == "The baseline and 1 trial are kept in session 1."
    first = closing(SessionState.of(histories.whole()))[0]
    assert first.startswith("Result: 1.97x")
    assert "26.3 → 13.4 ms a step" in first


def test_nothing_measured_is_said_in_the_closing_words() -> None:
    assert closing(SessionState.of(histories.failure())) == [], "the command line prints the error"
    assert closing(SessionState()) == ["Nothing was measured."]


def test_events_before_the_start_are_not_lost() -> None:
    app, _ = make_app([])
    for event in histories.start():
        app.post_event(event)
    app._take_events()
    assert app.context.state.facts is not None


def test_every_key_that_is_shown_has_an_id_a_label_and_a_tooltip() -> None:
    declared = [binding for owner in (*VIEWS, AdvisorApp) for binding in owner.BINDINGS]
    shown = [binding for binding in declared if isinstance(binding, Binding) and binding.show]
    assert [binding for binding in shown if not (binding.id and binding.description and binding.tooltip)] == []
    assert len(KEYS) == 30
