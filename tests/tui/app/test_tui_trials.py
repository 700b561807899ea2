"""The table of trials: what is in it, in which order, what of it is shown, and whose log stands under it."""

# ruff: noqa: RUF001 - the en dash of an interval

from dataclasses import replace

import pytest
import tui_histories as histories
from tui_fakes import FakeExporter
from tui_pilot import cells, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.experiment.control import RAISE_BUDGET
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Comparison, OperatorRow, Outcome, TargetSpec
from advisor.tui.context import Context
from advisor.tui.text import interval_bar, shortened, trial_name
from advisor.tui.views.advice_text import list_entry
from advisor.tui.views.readings import live_text
from advisor.tui.views.trial_rows import COLUMNS, EFFECT, build_rows, fitting_columns, name_width, tally
from advisor.tui.views.trial_text import selection_text
from advisor.tui.views.trials import Order, rows_to_show
from advisor.tui.widgets.log_tail import LogTail, folded
from advisor.tui.widgets.operator_table import OperatorTable, columns_of
from advisor.tui.widgets.status import now_text

PART = "stack without autocast"
SKIPPED = histories.failed("tf32", "precision.float32_matmul", "medium", Outcome.SKIPPED, "it needs about 17 s")


@pytest.fixture
def state() -> SessionState:
    return SessionState.of(histories.contributed())


def keys(state: SessionState, order: Order) -> list[str]:
    return [row.key for row in rows_to_show(build_rows(state), order, state)]


# --- the selected trial ---------------------------------------------------------------------------------------


def test_step_times_are_a_line_beside_the_baselines() -> None:
    state = SessionState.of(histories.timed())
    line = next(line for line in selection_text("stack", state).plain.split("\n") if line.startswith("steps"))
    drawn, spread = line.removeprefix("steps ").split(" ", 1)
    assert drawn == "▄▄▄▅▅▅▅▅▇"  # the slowest block came last, 5 % above the median
    assert spread == "13.7 ms to 14.6 ms   baseline ▅▅▅▅▅ 32.6 ms"


def test_a_trial_that_ran_with_others_only_has_no_step_times_of_its_own(state) -> None:
    name = next(name for name, record in state.trials.items() if record.result.measured)
    assert "\nsteps " in selection_text(name, state).plain
    state.trials[name] = replace(state.trials[name], settings={**state.trials[name].settings, "x.y": 1})
    assert "\nsteps " not in selection_text(name, state).plain


def test_a_trial_that_runs_again_shows_how_steady_it_was() -> None:
    state = SessionState.of(histories.whole())
    state.running = histories.LAST.candidate.name
    assert "last time ▅▅▅▅▅" in selection_text(state.running, state).plain


# --- rows -----------------------------------------------------------------------------------------------------


def test_what_ran_stands_above_what_did_not(state) -> None:
    """A short session tries five of forty candidates, and the stacks that it tries are no candidates."""
    first, second = (name for name, record in list(state.trials.items())[:2] if record.result.measured)
    record = state.trials[first]
    state.trials[first] = replace(record, result=replace(record.result, outcome=Outcome.SKIPPED, reason="no time"))
    shown = keys(state, Order())
    assert shown.index(second) < shown.index(PART) < shown.index(first)
    state.running = first
    assert keys(state, Order()).index(first) < shown.index(PART)


def test_every_trial_has_a_row_also_one_that_is_no_candidates(state) -> None:
    rows = {row.key: row for row in build_rows(state)}
    assert rows[PART].cells["step"].plain == "19.6 ms"
    assert rows[PART].log_path == "/nowhere/drop.log"
    state.apply(events.TrialStarted("baseline, again", "/nowhere/again.log"))
    state.apply(events.TrialActivity("baseline, again", "warming up"))
    rows = {row.key: row for row in build_rows(state)}
    assert rows["baseline, again"].cells["effect"].plain == "again: warming up"


@pytest.mark.parametrize(
    ("name", "subject", "told"),
    [
        ("stack: compile.scope: with_loss, step.cuda_graph: true", "stack of 2", "compile.scope, step_graph"),
        ("stack without autocast, not compiled", "stack", "without autocast, not compiled"),
        ("stack, confirmed", "stack", "in turn with the baseline"),
        ("again: data.workers: 4, step.cuda_graph: true", "stack of 2, again", "workers=4, step_graph"),
        ("again: data.workers: 8, step.cuda_graph: true", "stack of 2, again", "workers=8, step_graph"),
        ("again: compile.mode: default, step.cuda_graph: true", "stack of 2, again", "compile, step_graph"),
        ("again: baseline", "baseline, again", "measured"),
        ("again: num_workers=1", "num_workers=1, again", "measured"),
        ("again: fused_optimizer=fused", "fused_optimizer=fused", "measured again"),
        ("again: data.num_workers: 1", "num_workers=1, again", "measured"),
        ("stack: the rest", "stack", "the rest"),
        ("baseline, instrumented", "baseline", "instrumented"),
        ("the same step on the CPU", "the same step on the CPU", "measured"),
    ],
)
def test_what_a_trial_was_of_and_what_is_said_of_it_have_a_column_each(state, name, subject, told) -> None:
    both = (Candidate("workers", "data.workers", count) for count in (4, 8))
    state.apply(events.TrialsPlanned((*state.candidates.values(), *both), {}))
    state.apply(events.TrialStarted(name, "/nowhere/x.log"))
    state.apply(events.TrialEnded(name, Outcome.MEASURED, "", 19.6, None, 3.0))
    state.stack = replace(state.stack, confirmed=False)  # so the turns were another stack's
    (row,) = [row for row in build_rows(state) if row.key == name]
    assert row.cells["name"].plain == subject
    assert row.cells["effect"].plain.startswith(told)


@pytest.mark.parametrize("name", ["stack: {}", "again: {}", "stack, confirmed"])
def test_the_runs_of_the_present_stack_are_told_by_its_one_row(state, name) -> None:
    name = name.format(Settings(state.stack.settings))
    state.apply(events.TrialStarted(name, "/nowhere/x.log"))
    assert name in keys(state, Order()), "it runs"
    state.apply(events.TrialEnded(name, Outcome.MEASURED, "", 19.6, None, 3.0))
    assert name not in keys(state, Order())
    assert "stack" in keys(state, Order())
    state.apply(events.StackMeasured(replace(state.stack, settings={"step.cuda_graph": True}, confirmed=False)))
    assert name in keys(state, Order()), "another stack is the best one now"


def test_a_stack_that_runs_or_was_skipped_is_told_by_its_size_where_its_settings_have_no_room(state) -> None:
    name = "stack: compile.scope: with_loss, model.memory_format: channels_last, precision.autocast: bfloat16"
    state.apply(events.TrialStarted(name, ""))
    state.apply(events.TrialActivity(name, "compiling"))
    context = Context(Request(TargetSpec("m:b", "/x")), FakeExporter(), state=state)

    def in_the_table() -> str:
        return next(row.cells["name"].plain for row in build_rows(state) if row.key == name)

    assert in_the_table() == "stack of 3"
    assert now_text(context, 60).plain.startswith("stack of 3  compiling")
    assert now_text(context).plain.endswith(f"{name}  compiling  0 s"), "there is room for all of it"
    assert live_text(state, 70).plain == "▶ stack of 3  compiling"
    assert name in selection_text(name, state).plain
    state.apply(events.TrialEnded(name, Outcome.SKIPPED, "no time"))
    assert in_the_table() == "stack of 3"


def test_a_contribution_fits_its_column_on_a_narrow_screen(state) -> None:
    narrow = {column.key: width for column, width in fitting_columns(80)}
    name = histories.AUTOCAST.candidate.name
    for small in (Comparison(1.0124, 1.0091, 1.0153), Comparison(1.001, 0.998, 1.004)):
        state.trials[name] = replace(state.trials[name], contribution=small)
        (row,) = [row for row in build_rows(state) if row.key == name]
        assert row.cells["effect"].cell_length <= narrow["effect"]
        entry = list_entry(state.recommendations[0], None, state.yardstick, wide=False).plain
        assert entry.splitlines()[1].endswith("★"), "the mark of the stack is not cut off"


def test_a_trial_that_has_ended_no_longer_runs(state) -> None:
    state.apply(events.TrialStarted(PART, ""))
    assert state.running == PART
    state.apply(events.TrialEnded(PART, histories.Outcome.MEASURED, "", 19.0, None, 3.0))
    assert state.running == ""


def test_a_candidate_that_was_measured_stays_among_the_others_until_it_is_judged(state) -> None:
    name = next(name for name, record in state.trials.items() if record.result.measured)
    place = keys(state, Order()).index(name)
    del state.trials[name]
    state.finished = None
    assert "waits for its turn" in selection_text(name, state).plain
    state.apply(events.TrialEnded(name, Outcome.MEASURED, "", 19.0, None, 3.0))
    assert keys(state, Order()).index(name) == place
    assert "measured: 19.0 ms" in selection_text(name, state).plain
    assert next(row for row in build_rows(state) if row.key == name).cells["step"].plain == "19.0 ms"


def test_the_tally_counts_candidates_and_not_the_control(state) -> None:
    candidates = [record for record in state.trials.values() if record.candidate.recipe != "control"]
    assert tally(state, wide=True).plain.startswith(f"{len(candidates)} of {len(candidates)} tried")


def test_the_stack_is_the_longest_bar() -> None:
    state = SessionState.of(histories.whole())
    bars = {row.key: row.cells["bar"].plain for row in build_rows(state)}
    stack, best = bars["stack"], bars[histories.LAST.candidate.name]
    assert stack.index("●") == len(stack) - 1
    assert best.index("●") < stack.index("●")
    assert bars[histories.ZERO_GRAD.candidate.name].index("●") <= best.index("│")


@pytest.mark.parametrize(
    ("ratio", "drawn"),
    [((2.0, 2.0, 2.0), "      │     ●"), ((0.5, 0.5, 0.5), "●     │      "), ((1.0, 0.9, 1.1), "     ─●─     ")],
)
def test_an_interval_is_drawn_around_once_as_fast(ratio, drawn) -> None:
    assert interval_bar(Comparison(*ratio), 0.6931, 13) == drawn
    assert interval_bar(None, 1.0, 13) == ""


def test_what_was_stopped_does_not_wait_for_its_turn() -> None:
    def effects(*later: events.Event) -> dict[str, str]:
        state = SessionState.of([*histories.to_trials(), *later])
        return {row.key: row.cells[EFFECT].plain for row in build_rows(state, (), 120)}

    over = events.SessionFinished(True, 60.0)
    name = next(name for name, effect in effects().items() if effect == "waiting")
    assert effects(over)[name] == "not tried"
    begins = events.TrialStarted(name, "/tmp/trial.log")
    assert effects(begins, over)[name] == "stopped before it was measured"
    state = SessionState.of([*histories.to_trials(), begins, over])
    assert "stopped before it was measured" in selection_text(name, state, None, recorded=False).plain


def test_names_are_cut_in_their_middle() -> None:
    assert shortened("convolution_backward", 11) == "convo…kward"
    assert shortened("short", 11) == "short"
    assert shortened("anything", 0) == ""
    told = "stack without autocast, not compiled"
    assert trial_name(told, 20) == "stack without autoc…", "`stack with… compiled` says the opposite"


def test_reasons_get_the_width_and_names_do_not() -> None:
    for width in (40, 60, 80, 104, 120, 200):
        widths = {column.key: cells for column, cells in fitting_columns(width, 24)}
        assert widths["effect"] >= len("1.39x (1.38–1.40)")
        assert widths["name"] <= 24
        assert sum(widths.values()) + 2 * len(widths) <= width, "no key scrolls the table to the side"
    assert {column.key: cells for column, cells in fitting_columns(200)}["effect"] > 60


@pytest.mark.parametrize(("width", "added", "bar"), [(80, "+1.41x (1.39–1.43)", 13), (200, "on the stack", 37)])
def test_a_wide_screen_says_where_a_setting_was_measured_and_draws_longer_bars(width, added, bar) -> None:
    state = SessionState.of(histories.contributed())
    long = Candidate("find_unused_parameters", "ddp.find_unused_parameters", True)
    state.apply(events.TrialsPlanned((*state.candidates.values(), long), {}))
    rows = [row for row in build_rows(state, width=width) if "+1.41x" in row.cells["effect"].plain]
    assert rows
    assert rows[0].cells["effect"].plain.endswith(added)
    assert len(rows[0].cells["bar"].plain) == bar


def test_a_trial_of_no_candidate_that_runs_is_told_in_full_by_both_columns(state) -> None:
    state.apply(events.TrialStarted("baseline, instrumented", ""))
    state.apply(events.TrialActivity("baseline, instrumented", "warming up"))
    (row,) = [row for row in build_rows(state) if row.key == "baseline, instrumented"]
    assert row.cells["name"].plain == "baseline"
    assert row.cells["effect"].plain == "instrumented: warming up"
    state.apply(events.TrialEnded("baseline, instrumented", Outcome.FAILED, "it was killed", None, None, 3.0))
    (row,) = [row for row in build_rows(state) if row.key == "baseline, instrumented"]
    assert row.cells["effect"].plain == "instrumented: it was killed"


def test_the_baseline_that_runs_says_what_it_does() -> None:
    state = SessionState.of([*histories.start(), events.TrialStarted("baseline", "")])
    state.apply(events.TrialActivity("baseline", "warming up"))
    assert selection_text("baseline", state).plain.endswith("▶ baseline  warming up")


def test_a_long_name_is_told_by_its_recipe_where_that_has_no_other_value() -> None:
    names = {row.key: row.cells["name"].plain for row in build_rows(SessionState.of(histories.whole()))}
    assert names["channels_last=channels_last"] == "channels_last"
    assert names["num_workers=4"] == "num_workers=4", "what fits is told in full"
    assert all("…" not in name for name in names.values())


def test_recipes_with_long_names_widen_their_column() -> None:
    candidates = tuple(
        Candidate(name, f"ddp.{name}", True) for name in ("gradient_as_bucket_view", "find_unused_parameters")
    )
    state = SessionState.of([*histories.start(), events.TrialsPlanned(candidates, {})])
    names = [row.cells["name"].plain for row in build_rows(state)]
    assert {"gradient_as_bucket_view", "find_unused_parameters"} <= set(names)
    widths = {column.key: cells for column, cells in fitting_columns(80, name_width(state))}
    assert widths["name"] == len("gradient_as_bucket_view")
    assert sum(widths.values()) + 2 * len(widths) <= 80


def test_a_huge_interval_fits_the_column_of_effects() -> None:
    wide = replace(histories.AUTOCAST, comparison=Comparison(33.0, 2.0, 600.0), contribution=None)
    state = SessionState.of([*histories.whole(), events.TrialMeasured(wide)])
    (row,) = [row for row in build_rows(state) if row.key == wide.candidate.name]
    assert row.cells["effect"].plain == "at least 2.00x"
    assert row.cells[EFFECT].cell_length <= {column.key: cells for column, cells in fitting_columns(80)}[EFFECT]


def test_a_reason_that_more_time_takes_away_names_the_key() -> None:
    state = SessionState.of(histories.whole())
    reason = f"no time: it needs about 17 s; {RAISE_BUDGET}"
    late = histories.failed("tf32", "precision.float32_matmul", "medium", Outcome.SKIPPED, reason)
    state.apply(events.TrialMeasured(late))
    row = next(row for row in build_rows(state) if row.key == late.candidate.name)
    assert row.cells["effect"].plain == "no time: it needs about 17 s; R tries it"


def test_a_setting_that_slows_the_stack_adds_nothing() -> None:
    state = SessionState.of(histories.contributed())
    record = state.trials[histories.COMPILE.candidate.name]
    state.apply(events.TrialMeasured(replace(record, contribution=Comparison(0.84, 0.78, 0.91))))
    row = next(row for row in build_rows(state) if row.key == record.candidate.name)
    assert row.cells["effect"].plain.startswith("0.84x (0.78–")


def test_a_session_that_failed_before_its_trials_expects_none() -> None:
    assert tally(SessionState.of(histories.start()), wide=True).plain == "Nothing has been tried yet."
    assert tally(SessionState.of(histories.failure()), wide=True).plain == "Nothing was tried."


def test_a_recorded_trial_is_not_said_to_be_tried_again_by_a_key(state) -> None:
    state.apply(events.TrialMeasured(SKIPPED))
    for name in (histories.BATCH_BIG.candidate.name, SKIPPED.candidate.name):
        assert "t tries it" in selection_text(name, state).plain
        assert "t tries it" not in selection_text(name, state, recorded=True).plain
    assert "R tries all that was left out" in selection_text(SKIPPED.candidate.name, state, recorded=True).plain


def test_a_rejected_trial_says_so_before_its_effect() -> None:
    state = SessionState.of([*histories.whole(), events.Decided("channels_last", histories.Decision.REJECTED)])
    (row,) = [row for row in build_rows(state) if row.key == "channels_last=channels_last"]
    assert row.cells["effect"].plain == "rejected, 1.39x (1.38–1.40)"
    joined = SessionState.of([*histories.contributed(), events.Decided("autocast", histories.Decision.REJECTED)])
    (row,) = [row for row in build_rows(joined, width=120) if row.key == histories.AUTOCAST.candidate.name]
    assert row.cells["effect"].plain == "rejected, +1.41x (1.39–1.43)", "it is not cut off"
    record = joined.trials[histories.AUTOCAST.candidate.name]
    same = replace(record, contribution=Comparison(1.0, 0.99, 1.01))
    for shown, told in ((record, "rejected, +1.41x"), (same, "rejected, same")):
        joined.apply(events.TrialMeasured(shown))
        (row,) = [row for row in build_rows(joined, width=70) if row.key == record.candidate.name]
        assert row.cells["effect"].plain == told, "not cut off in its middle"


# --- order ----------------------------------------------------------------------------------------------------


def test_what_does_not_apply_is_hidden_unless_it_is_asked_for(state) -> None:
    assert not any(key.startswith("skipped:") for key in keys(state, Order()))
    assert sum(key.startswith("skipped:") for key in keys(state, Order(show_skipped=True))) == len(state.skipped)
    assert keys(state, Order(query="torchao")) == ["skipped:float8"], "who looks for it finds it"


@pytest.mark.parametrize("column", [column.key for column in COLUMNS if column.label])
def test_rows_are_sorted_by_every_column_both_ways(state, column) -> None:
    there, back = keys(state, Order(column)), keys(state, Order(column, backwards=True))
    assert there[:2] == back[:2] == ["baseline", "stack"]
    assert sorted(there) == sorted(back) == sorted(keys(state, Order()))
    assert there != back


def test_the_best_effect_comes_first_and_what_has_none_last(state) -> None:
    by_effect = keys(state, Order("effect"))
    assert by_effect[2] == histories.AUTOCAST.candidate.name
    assert by_effect.index(histories.GRAPH.candidate.name) > by_effect.index(histories.ZERO_GRAD.candidate.name)
    by_step = keys(state, Order("step"))
    assert by_step.index(PART) < by_step.index(histories.ZERO_GRAD.candidate.name)


def test_a_heading_sorts_turns_round_and_goes_back_to_the_plan() -> None:
    order = Order().by("step")
    assert (order.column, order.backwards) == ("step", False)
    assert order.by("step").backwards
    assert order.by("step").by("step") == Order()
    shown = [column for column, _ in fitting_columns(80)]
    seen = [order := order.by_next(shown) for _ in range(len(shown))]
    assert seen[0].column == "memory"
    assert "" in [order.column for order in seen], "the plan's own order is among them"


def test_words_are_looked_for_in_names_and_reasons(state) -> None:
    assert keys(state, Order(query="MEMORY out")) == [histories.BATCH_BIG.candidate.name]
    assert keys(state, Order(query="[nothing")) == []
    assert keys(state, Order(query="slower")) == [histories.ZERO_GRAD.candidate.name], "by its verdict"
    assert histories.LAST.candidate.name in keys(state, Order(query="faster"))


async def test_where_nothing_is_found_the_way_back_is_said() -> None:
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await press(pilot, "3", "slash", *"nosuch")
        assert "Nothing here has “nosuch” in it. Escape shows all." in screen_text(app)
        await press(pilot, "escape", "h", "end")
        assert "Log of sdpa" in screen_text(app), "the name and not the key of the row"


async def test_the_table_is_sorted_filtered_and_unfolded_by_keys() -> None:
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await press(pilot, "3")
        assert "5 do not apply: h shows them" in screen_text(app)
        await press(pilot, "h", "end")
        assert "scaled_dot_product_attention" in screen_text(app)
        await press(pilot, "h", "o", "o")
        assert "effect▼" in screen_text(app)
        lines = screen_text(app).splitlines()
        row = next(place for place, line in enumerate(lines) if "memory" in line and "effect" in line)
        await pilot.click(offset=(lines[row].index("memory"), row))
        await settle(pilot)
        assert "memory▲" in screen_text(app), "the smallest first"
        await press(pilot, "slash", *"batch")
        shown = screen_text(app)
        assert "/batch: 3 of" in shown
        assert "channels_last" not in shown.replace("stack", "")
        assert "/ Filter" not in shown.splitlines()[-1], "it is typed now"
        await pilot.press("enter")
        assert app.focused is app.query_one("#trials-table")
        await press(pilot, "escape")
        assert "/batch" not in screen_text(app)
        assert "channels_last" in screen_text(app)


async def test_a_log_takes_as_many_rows_as_it_has_lines_and_at_most_a_third(tmp_path) -> None:
    log = tmp_path / "trial.log"
    log.write_text("")

    async with driven([events.TrialStarted("baseline", str(log))], hold=True) as (pilot, app, _control):
        await press(pilot, "3")
        tail = app.query_one(LogTail)
        assert tail.outer_size.height == 3, "a sentence in a border"
        for lines, rows in ((3, 5), (200, 9)):
            log.write_text("\n".join(f"line {line}" for line in range(lines)))
            tail.poll()
            await settle(pilot)
            assert tail.outer_size.height == rows
        assert "line 199" in screen_text(app)


async def test_a_log_that_was_hidden_shows_what_was_written_meanwhile_at_once(tmp_path, monkeypatch) -> None:
    log = tmp_path / "trial.log"
    log.write_text("begins\n")
    monkeypatch.setattr(LogTail, "on_mount", lambda tail: None)  # without it, the log is not read again by itself

    async with driven([events.TrialStarted("baseline", str(log))], hold=True) as (pilot, app, _control):
        await press(pilot, "3")
        assert "begins" in screen_text(app)
        await press(pilot, "1")
        log.write_text("begins\ngoes on\n")
        await press(pilot, "3")
        assert "goes on" in screen_text(app)


async def test_the_log_follows_the_running_trial_until_another_is_picked(tmp_path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in "abc"}
    for name, path in logs.items():
        path.write_text(f"this is {name}\n")

    async with driven(histories.to_trials()[:-3], hold=True, toasts=False) as (pilot, app, _control):

        def shown() -> list[str]:
            return list(app.query_one(LogTail).lines)[:1]

        await pilot.press("3")
        for name in "ab":
            app.post_event(events.TrialStarted(f"stack without {name}", str(logs[name])))
            await settle(pilot)
            assert shown() == [f"this is {name}"]
        await press(pilot, "up")
        picked = app.view.selected_key
        app.post_event(events.TrialEnded("stack without b", histories.Outcome.MEASURED))
        app.post_event(events.TrialStarted("stack without c", str(logs["c"])))
        await settle(pilot)
        assert app.view.selected_key == picked, "the person's choice stays"
        await press(pilot, "f")
        assert shown() == ["this is c"]
        logs["c"].write_text("line\n" * 100_000 + "the last\n")
        app.query_one(LogTail).poll()
        assert list(app.query_one(LogTail).lines)[-2:-1] == ["the last"] or "the last" in app.query_one(LogTail).lines
        app.post_event(events.TrialEnded("stack without c", histories.Outcome.CRASHED, "killed"))
        await settle(pilot)
        assert app.view.selected_key == "stack without c"
        assert "killed" in screen_text(app)


def test_pytorchs_own_warnings_are_folded() -> None:
    log = (
        "loading\n/x/site-packages/torch/cuda/__init__.py:61: FutureWarning: pynvml is deprecated\n"
        "  import pynvml\nW1122 10:00:00.1 77 torch/_inductor/utils.py:1137] Not enough SMs\nmy own line"
    )
    assert folded(log) == "loading\n(3 lines of PyTorch's own warnings)\nmy own line"
    assert folded("a\n  b") == "a\n  b"


# --- operators ------------------------------------------------------------------------------------------------


def test_totals_make_way_for_names() -> None:
    rows = (OperatorRow("aten::convolution_backward", 53, 3.4, 15.2, 4.1, 15.2),)
    assert [column.key for column in columns_of(rows, 52, by_shape=False)] == ["device", "host", "calls"]
    assert len(columns_of(rows, 76, by_shape=False)) == 5


async def test_operators_keep_their_names_apart_at_100_columns() -> None:
    async with driven(histories.whole(), size=(100, 30), toasts=False) as (pilot, app, _control):
        await press(pilot, "2")
        names = list(cells(app.query_one(OperatorTable), "operator").values())
        assert len(set(names)) == len(names)
        assert [name for name in names[:4] if name not in screen_text(app)] == []
