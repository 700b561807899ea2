"""View 1: the headline, the ranked list, the card, and the decisions that are taken there."""

from dataclasses import replace

import pytest
import tui_histories as histories
from tui_pilot import (
    LARGE,
    SIZES,
    WIDE,
    check_figures,
    choose,
    driven,
    headline,
    make_app,
    notice,
    pane_text,
    press,
    screen_text,
    setting_cell,
    settle,
    tell,
)

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.request import Outputs
from advisor.records import Outcome, TrialResult
from advisor.tui.widgets.table import Table


def table_of(app) -> Table:
    return app.query_one("#rows", Table)


def card(app) -> str:
    return " ".join(pane_text(app.query_one("#card")).split())


@pytest.mark.parametrize("name", histories.SESSIONS)
async def test_every_speed_up_is_the_quotient_of_the_steps_beside_it_and_no_cell_is_empty(name) -> None:
    async with driven(histories.SESSIONS[name], size=WIDE) as (pilot, _app, _control):
        assert await check_figures(pilot) > 1


@pytest.mark.parametrize("size", SIZES)
async def test_the_headline_has_the_speed_up_beside_its_two_step_times(size) -> None:
    async with driven(histories.whole(), size=size) as (_pilot, app, _control):
        assert headline(app).startswith("1.97x faster: 26.3 → 13.4 ms a step")
        for text in ("1.96–1.98, confirmed", "9.13 → 5.47 GiB (-40 %)", "close (4.4e-03)", "4 exports it"):  # noqa: RUF001
            assert text in headline(app)


async def test_the_headline_follows_what_is_known() -> None:
    begun = histories.start()
    async with driven(begun[:4], hold=True) as (pilot, app, _control):
        assert "Loading your model" in screen_text(app)
        await tell(pilot, events.TrialActivity("baseline", "first steps"))
        assert "Timing your own step first" in screen_text(app)
        await tell(pilot, events.BlockTimed("baseline", 31.4))
        app.base_screen.tick()
        await settle(pilot)
        assert headline(app).startswith("31.4 ms a step with your settings  so far")
        await tell(pilot, events.BaselineMeasured(histories.BASELINE))
        assert headline(app).startswith("26.3 ms a step with your settings")
        assert app.query_one("#phases").has_class("-missing")
        await tell(pilot, *histories.to_trials()[len(begun) :])
        assert "compute-heavy" in screen_text(app)
        assert "backward 59 %" in screen_text(app)


async def test_only_a_confirmed_combination_is_a_full_point() -> None:
    async with driven(histories.whole()[:-1], hold=True) as (pilot, app, _control):
        assert "●" in setting_cell(app, "together", "bar")
        await tell(pilot, events.StackMeasured(replace(histories.STACK, confirmed=False)))
        assert "○" in setting_cell(app, "together", "bar")
        assert "●" in setting_cell(app, histories.LAST.candidate.name, "bar"), "measured alone"


async def test_what_had_no_time_is_offered() -> None:
    skipped = TrialResult(Outcome.SKIPPED, "no time: raise --budget to try it")
    late = [events.TrialMeasured(replace(one, result=skipped)) for one in (histories.LAST, histories.WORKERS)]
    async with driven([*histories.whole()[:-1], *late, histories.whole()[-1]]) as (pilot, app, _control):
        assert "2 not tried (out of time). R tries them" in headline(app)
        await press(pilot, "end", "up")
        assert "channels_last=channels_last, num_workers=4: no time: R tries it" in card(app)


async def test_a_busy_machine_is_told_in_amber_with_the_key_that_waits() -> None:
    busy = events.Said("other programs use 1.6 of 2 cores (python)", "warning", "company")
    async with driven([*histories.to_trials(), busy], hold=True) as (pilot, app, control):
        assert "Other programs use 1.6 of 2 cores (python). w waits until it is quiet." in screen_text(app)
        await press(pilot, "w")
        assert ("pause",) in control.calls
        assert "Waiting until this machine is quiet" in notice(app)
        await press(pilot, "space")
        assert ("go_on",) in control.calls
    async with driven([*histories.whole(), busy]) as (_pilot, app, _control):
        assert "w waits" not in screen_text(app), "the session is over"


async def test_the_list_is_ranked_folded_and_sorted_as_numbers() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        table, other = table_of(app), histories.BATCH_DOUBLED.candidate.name
        assert table.keys[:3] == ["together", histories.LAST.candidate.name, histories.COMPILE.candidate.name]
        assert table.keys[-2:] == ["yours", "skipped"]
        assert table.cursor_key == "together"
        assert "4 settings together" in screen_text(app)

        await choose(pilot, histories.BATCH.candidate.name)
        assert other not in table.keys
        await press(pilot, "right")
        assert other in table.keys
        await press(pilot, "left")
        assert other not in table.keys
        await press(pilot, "end")
        assert "pip install torchao" in card(app), "with the reason of each"

        await press(pilot, *["o"] * ([column.key for column in table.shown].index("memory") + 1))
        rows = [row for key in table.keys if (row := app.context.ranking.row(key)) and row.figures]
        peaks = [row.figures.memory_bytes[1] for row in rows]
        assert peaks == sorted(peaks)
        assert table.keys[0] == "together", "the combination and your own settings keep their places"


async def test_rows_that_come_leave_the_cursor_on_its_row() -> None:
    history = histories.whole()
    start = len(histories.to_trials())
    async with driven(history[:start], hold=True) as (pilot, app, _control):
        await press(pilot, "down", "down")
        selected = table_of(app).cursor_key
        await tell(pilot, *history[start:-1])
        assert table_of(app).cursor_key == selected
        await tell(pilot, history[-1])
        assert table_of(app).cursor_key == "together", "at the end the best is selected"


@pytest.mark.parametrize("size", SIZES)
async def test_enter_reads_the_card_and_escape_goes_back(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        await press(pilot, "down", "enter")
        assert app.focused.id == "card"
        assert "Channels-last memory format" in screen_text(app)
        assert ("all 4 together" in screen_text(app)) is (size == LARGE)
        await press(pilot, "escape")
        assert app.focused.id == "rows"
        assert "all 4 together" in screen_text(app)


async def test_the_card_has_the_figures_the_reason_the_code_and_the_text() -> None:
    async with driven(histories.contributed()) as (pilot, app, _control):
        await choose(pilot, histories.AUTOCAST.candidate.name)
        for text in (
            "recommended, and exported",
            "+1.41x",
            "compared with and without it",
            "18.9 → 13.4 ms",
            "It attacks what the step is bound by",
            "Alone",
            "torch.autocast",
        ):
            assert text in card(app), text


async def test_other_cards_say_what_failed_what_needs_consent_and_what_the_workload_is() -> None:
    said = {
        histories.GRAPH.candidate.name: ("SGD cannot be captured: [capturable]", "AdamW and Adam take capturable=True"),
        histories.BATCH.candidate.name: ("used only if you accept it",),
        "yours": ("ResNet", "25.6 M parameters", "NVIDIA H200", "samples per second", "train.py:41", "# [red]"),
    }
    async with driven(histories.whole()) as (pilot, app, _control):
        assert setting_cell(app, histories.GRAPH.candidate.name) == "failed"
        for name, texts in said.items():
            await choose(pilot, name)
            assert [text for text in texts if text not in card(app)] == []


async def test_accept_and_reject_are_the_tick_which_can_be_clicked() -> None:
    async with driven(histories.whole()) as (pilot, app, control):
        control.holds_rework = True
        table, name = table_of(app), histories.LAST.candidate.name
        left = sum(column.width + 2 for column in table.shown if column.key != "tick")
        await pilot.click(table, offset=(left + 2, table.keys.index(name) + 1))
        await settle(pilot)
        assert ("decide", "channels_last", Decision.REJECTED) in control.calls
        assert "☐" in setting_cell(app, name, "tick")
        await choose(pilot, histories.BATCH_DOUBLED.candidate.name)
        await press(pilot, "a")
        assert ("decide", "batch_size", Decision.ACCEPTED, 128) in control.calls, "as the value stands in its row"
        await choose(pilot, "tf32=high")
        before = table.keys
        await press(pilot, "a")
        assert control.calls[-1] == ("rework",) or ("decide", "tf32", Decision.ACCEPTED) in control.calls
        assert "◷" in setting_cell(app, "tf32=high", "tick")
        assert (table.cursor_key, table.keys) == ("tf32=high", before), "the list does not move under a key press"
        assert not app.view.can("accept")
        await press(pilot, "r")
        assert "☐" in setting_cell(app, "tf32=high", "tick")
        assert "rejected by you" in card(app)
        control.stop()


async def test_what_was_accepted_and_is_not_exported_says_why_in_red() -> None:
    history = [*histories.whole(), events.Decided("num_workers", Decision.ACCEPTED)]
    async with driven(history) as (pilot, app, _control):
        name = histories.WORKERS.candidate.name
        assert "☒" in setting_cell(app, name, "tick")
        await choose(pilot, name)
        assert "accepted, but not exported: within the noise once the rest is on" in card(app)


async def test_what_cannot_be_decided_has_no_keys() -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, control):
        for name in ("yours", "skipped", histories.BENCHMARK.candidate.name):
            await choose(pilot, name)
            assert [app.view.can(action) for action in ("accept", "reject")] == [False, False], name
            await press(pilot, "a", "r")
        assert [call for call in control.calls if call[0] == "decide"] == []


async def test_nothing_covers_what_is_on_the_screen() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        before = screen_text(app).splitlines()[:-2]
        app.notify("a notice that is long enough to take several lines of a narrow screen " * 3, severity="error")
        await settle(pilot)
        assert screen_text(app).splitlines()[:-2] == before
        assert "a notice that is long" in notice(app)


# Of ten questions after a session: the key from view 1, the question, and what has to stand on the screen then.
QUESTIONS = {
    "home": {
        "what is my step": ["26.3 →"],
        "what is it bound by": ["compute-heavy"],
        "what helps most": ["★ all 4 together", "1.97x", "★ autocast"],
        "with which memory": ["5.47 GiB"],
        "what changes results": ["changed", "☐!"],
        "is it certain": ["1.96–1.98, confirmed"],  # noqa: RUF001
    },
    "end": {"what was not tried, and why": ["4 not applicable", "float8: "]},
    "4": {
        "what do I type now": ["run your training with train.tuned.yaml"],
        "what changed in my file": ["-amp: none", "+amp: bfloat16"],
        "how do I undo it": ["your own file stays"],
    },
}


@pytest.mark.parametrize("size", SIZES)
async def test_each_is_answered_on_one_key_press(size, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("lr: 0.1\namp: none\n")
    app, _ = make_app(histories.contributed(), config_path="train.yaml")
    app.context.outputs = Outputs(config_path="train.yaml", key_map={"precision.autocast": "amp"})
    missing = []
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for key, questions in QUESTIONS.items():
            await press(pilot, key)
            shown = " ".join(screen_text(app).replace("│", " ").split())
            missing += [(asked, text) for asked, texts in questions.items() for text in texts if text not in shown]
    assert missing == []
