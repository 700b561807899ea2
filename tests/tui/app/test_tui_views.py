"""What the views say of a measurement: clocks, roof, operators, habits, readings, energy, findings, sweep, exports."""

# ruff: noqa: RUF001 - the en dash of an interval

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
import tui_histories as histories
from tui_keys import KEYS
from tui_pilot import SIZES, SMALL, cells, driven, press, rows_text, screen_text, settle

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.figures.sweep import sweep_rows
from advisor.recipe.catalog import load_catalog
from advisor.records import (
    Mode,
    Numerics,
    NumericsResult,
    Profile,
    SyncPlace,
)
from advisor.report.charts import Part, Stacked
from advisor.report.conclusions import sweep_of
from advisor.report.evidence import sweep_sentence
from advisor.report.figures import ceiling_figures, step_figures
from advisor.report.pictures import front_chart, steps_chart
from advisor.tui.exporting import copy_trace, free_path
from advisor.tui.views.advice_text import sweep_text
from advisor.tui.views.profile_text import habits_text, roof_facts
from advisor.tui.views.readings import trade_text
from advisor.tui.views.trial_rows import build_rows
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.operator_table import OperatorTable
from advisor.tui.widgets.phase_bar import legend
from advisor.tui.widgets.picture_panel import legend_of
from advisor.tui.widgets.texts import TextPane


def with_profile(told: list[events.Event], profile: Profile) -> list[events.Event]:
    """A history with another profile."""
    facts = [event for event in told if isinstance(event, events.FactsFound)][-1].facts
    return [*told, events.FactsFound(replace(facts, profile=profile))]


# --- profile --------------------------------------------------------------------------------------------------


async def test_operators_are_sorted_by_key_and_by_mouse() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "2")
        table = app.query_one(OperatorTable)
        assert list(cells(table, "device").values())[:2] == ["15.2 ms", "8.90 ms"]
        await press(pilot, "o", "o", "o")
        assert "by host time with what they call" in screen_text(app)
        assert next(iter(cells(table, "operator").values())) == "native_batch_norm"
        assert "Σ: with what they call" in screen_text(app)
        await pilot.press("o")
        assert table.order.key == "calls"
        await pilot.press("o")
        assert table.order.key == "device"
        heading = screen_text(app).splitlines()
        row = next(place for place, line in enumerate(heading) if "host Σ" in line)
        await pilot.click(offset=(heading[row].index("calls"), row))
        await settle(pilot)
        assert table.order.key == "calls"
        assert "Operators, per step, by calls" in screen_text(app)


@pytest.mark.parametrize("size", SIZES)
async def test_operators_by_shape_show_the_shapes_of_the_row_in_full(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        await press(pilot, "2", "g", "down", "down")
        shown = screen_text(app)
        assert "Operators by input shapes, per step, by GPU time" in shown
        assert "aten::native_batch_norm  [64, 256, 56, 56], [256], [256]" in shown
        await press(pilot, "g")
        assert "input shapes" not in screen_text(app)


async def test_a_narrow_profile_shows_one_panel_after_another() -> None:
    async with driven(histories.whole(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "2")
        assert "convolution_backward" in screen_text(app)
        await press(pilot, "m")
        shown = screen_text(app)
        assert "of 51.0 TFLOP/s float32" in shown
        assert "convolution_backward" not in shown
        await press(pilot, "end")
        for text in ("362 TFLOP/s  tf32", "55.1 GB/s  from pinned", "measured on 2026-07-14"):
            assert text in screen_text(app)
        await press(pilot, "m")
        for text in ("train.py:41  1 a step, 21.3 ms", "# [red]", "the backward pass", "eval_no_grad", "5.40 GiB"):
            assert text in screen_text(app)
        await press(pilot, "o")
        assert "by GPU time with what they call" in screen_text(app)


async def test_a_broad_profile_shows_all_panels_and_the_key_goes_through_them() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "2")
        shown = screen_text(app)
        for text in ("Waits and habits", "Efficiency", "GPU busy", "Tensor", "1,042 a step", "19.0 ms"):
            assert text in shown, shown
        focused = []
        for _ in range(3):
            await press(pilot, "m")
            focused.append(app.focused.id)
        assert focused == ["roof-panel", "habits-panel", "operators"]


@pytest.mark.parametrize("size", SIZES)
async def test_pictures_stand_in_place_of_the_panels_and_leave_again(size) -> None:
    async with driven(histories.timed(), size=size) as (pilot, app, _control):
        await press(pilot, "2", "p")
        assert "arithmetic intensity, FLOP per byte" in screen_text(app)
        assert "float32 51.0 TFLOP/s" in screen_text(app)
        assert "Operators" not in screen_text(app)
        assert ("F forward" in screen_text(app)) is (size[1] > 30)  # a short screen has no room for both
        await press(pilot, "p")
        assert "share of blocks" in screen_text(app)
        await press(pilot, "1", "2")
        assert "share of blocks" in screen_text(app), "the picture stays while another view is looked at"
        await press(pilot, "p")
        assert "Operators" in screen_text(app)
        assert "F forward" in screen_text(app)


def test_a_legend_names_only_what_stands_in_the_picture() -> None:
    both = SessionState.of(histories.timed())
    alone = SessionState.of([event for event in histories.timed() if not isinstance(event, events.StackMeasured)])
    assert [legend_of(plot) for plot in (steps_chart(both), steps_chart(alone)) if plot] == [
        "B baseline · S stack",
        "B baseline",
    ]
    front = front_chart(both)
    assert front is not None
    assert legend_of(front) == "B baseline · S stack · 1-9 rank · ─ front"


async def test_while_only_the_phases_are_known_nothing_is_said_of_habits() -> None:
    phases = Profile(10.0, {"forward": 4.0, "backward": 6.0}, phases_alone=True)
    async with driven(with_profile(histories.start(), phases), hold=True) as (pilot, app, _control):
        await press(pilot, "2")
        assert "backward" in screen_text(app)
        assert "What habits cost is measured with the profile." in screen_text(app)
        assert "No coding habit" not in screen_text(app)


async def test_keys_that_need_a_profile_are_hidden_without_one() -> None:
    async with driven(histories.start(), hold=True) as (pilot, app, _control):
        await press(pilot, "2", "o", "g", "t", "m")
        view = app.view
        assert [key.id for key in KEYS if key.view == "profile" and view.can(key.binding.action)] == []


def test_a_cpu_profile_has_no_column_for_a_gpu() -> None:
    step = Stacked("before", "4.00 ms", (Part("forward", "F", 3.0, ""), Part("backward", "B", 1.0, "")))
    assert [line.plain.split() for line in legend(step, {}, 76)] == [
        ["F", "forward", "3.00", "ms", "75", "%", "B", "backward", "1.00", "ms", "25", "%"]
    ]
    headed = legend(step, {"forward": 2.5}, 76)
    assert headed[0].plain.split() == ["step", "share", "GPU"] * 2
    assert "2.50 ms" in headed[1].plain
    assert "–" in headed[1].plain


def test_the_figures_of_the_roof_are_those_of_the_reports(state) -> None:
    profile = state.facts.profile
    shown = " ".join(rows_text(roof_facts(state)).split())
    for figure in (*step_figures(profile), *ceiling_figures(profile.ceilings)):
        assert figure.text in shown
    assert "Achieved ━━━━━━━━━━━━ 94 % of 51.0 TFLOP/s float32" in shown


def test_the_roof_without_ceilings(state) -> None:
    bare = Profile(step_ms=10.0, phases={}, flops_per_step=10**12)
    state.facts = replace(state.facts, profile=bare)
    assert rows_text(roof_facts(state)) == ("Step 10.0 ms\nWork 1.00 TFLOP a step\nRate 100 TFLOP/s")
    assert roof_facts(SessionState()) == []


def test_habits_where_nothing_waits_and_where_nobody_looked() -> None:
    nothing = habits_text(replace(histories.PROFILE, sync_places=(), habits=()), str)
    assert nothing.plain == "Nothing in the step makes the host wait for the device."
    assert habits_text(Profile(1.0, {}), str).plain == "No coding habit was measured here, and no wait was found."


def test_habits_are_shares_of_the_step() -> None:
    text = habits_text(replace(histories.PROFILE, sync_places=None), lambda name: f"<{name}>").plain
    assert "<zero_grad>  this part of the step" in text
    (zeros,) = [" ".join(line.split()) for line in text.splitlines() if "zeros" in line]
    assert zeros == "set_to_none=False, filled with zeros 0.41 ms 1.2 % of the step"


def test_a_line_that_waits_is_text_and_never_markup() -> None:
    places = (SyncPlace("a.py", 3, "print(loss)  # [/]", 2.0, 0.5),)
    assert "  print(loss)  # [/]" in habits_text(replace(histories.PROFILE, sync_places=places), str).plain


async def test_the_trace_is_saved_beside_the_exports_and_overwrites_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    trace = kept / "baseline.json.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))

    async with driven(with_profile(histories.whole(), replace(histories.PROFILE, trace_path=str(trace)))) as (
        pilot,
        app,
        _control,
    ):
        await pilot.press("2", "t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b'{"traceEvents": []}'
        assert "trace.json.gz" in screen_text(app)
        await pilot.press("t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert (tmp_path / "trace-2.json.gz").read_bytes() == trace.read_bytes()


async def test_a_trace_that_is_gone_is_a_toast(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async with driven(histories.whole()) as (pilot, app, _control):
        await pilot.press("2", "t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        shown = screen_text(app)
        assert "The trace was not saved" in shown
        assert "No such file or directory: baseline-trace.json.gz" in shown
        assert list(tmp_path.iterdir()) == []


def test_names_that_are_free(tmp_path) -> None:
    assert free_path(tmp_path / "tuned.yaml") == tmp_path / "tuned.yaml"
    for name in ("tuned.yaml", "tuned-2.yaml", "trace.json.gz", "Makefile"):
        (tmp_path / name).touch()
    assert free_path(tmp_path / "tuned.yaml").name == "tuned-3.yaml"
    assert free_path(tmp_path / "trace.json.gz").name == "trace-2.json.gz"
    assert free_path(tmp_path / "Makefile").name == "Makefile-2"


def test_a_copy_of_a_trace_says_why_it_failed(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_trace(tmp_path / "gone.json", tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- trials ---------------------------------------------------------------------------------------------------


def test_rows_are_marked_with_what_has_to_be_known(state) -> None:
    signs = {row.key: row.cells["state"].plain for row in build_rows(state)}
    assert signs["stack"] == "★⇄"
    assert signs[histories.LAST.candidate.name] == "▲⇄"
    assert signs[histories.WORSE.candidate.name] == "=≠⇄"
    assert signs[histories.WORKERS.candidate.name] == "=!"
    assert signs[histories.TF32.candidate.name] == "▲"
    assert signs[histories.GRAPH.candidate.name] == "✗"


def test_a_selected_trial_tells_energy_readings_and_remarks(state) -> None:
    text = selection_text(histories.WORKERS.candidate.name, state).plain
    for part in (
        "248 mJ → 246 mJ a sample (-1 %)",
        "51 °C at most, SM clock 1980 MHz, 486 W on average; 1 other process held a context on the GPU",
        "Unreliable: another process (pid 911, python) used up to 34 % of the GPU while it was timed.",
        "the gradient scaler skipped 2 of the first 8 updates",
        "4 workers on 16 cores [/]",
    ):
        assert part in text
    assert "in turn with the baseline" in selection_text(histories.LAST.candidate.name, state).plain
    assert "measured in turn with the baseline" in selection_text("stack", state).plain
    assert "248 mJ a sample" in selection_text("baseline", state).plain


def test_numerics_that_are_worse_than_declared_are_told(state) -> None:
    text = selection_text(histories.WORSE.candidate.name, state).plain
    assert "≠ the weights after the first step differ" in text
    assert "close (2.2e-07), declared exact" in text
    broken = replace(
        histories.GRAPH, numerics=NumericsResult(Numerics.CHANGED, Numerics.EXACT, None, "the losses are not finite")
    )
    state.apply(events.TrialMeasured(broken))
    assert "≠ the losses are not finite" in selection_text(broken.candidate.name, state).plain
    assert {row.key: row.cells["state"].plain for row in build_rows(state)}[broken.candidate.name] == "✗≠"


async def test_the_reason_for_a_disturbed_trial_is_on_the_screen() -> None:
    async with driven(histories.whole(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "3", *["down"] * 7)
        shown = screen_text(app)
        assert "=!" in shown
        assert "Unreliable: another process (pid 911, python)" in shown
        assert "4 workers on 16 cores [/]" in shown


def test_a_skipped_recipe_whose_habit_is_in_the_source_says_where(state) -> None:
    state.skipped = {"loss_sync": "the step reads no loss"}
    text = selection_text("skipped:loss_sync", state).plain
    assert text.startswith("loss_sync was not tried\nthe step reads no loss\ntrain.py:41")


def test_a_trade_is_memory_saved_for_time_lost() -> None:
    slower = replace(histories.measured("checkpointing", "model.checkpointing", True, 0.8, 5.0))
    assert trade_text(slower, histories.BASELINE).plain == "saves 4.10 GiB (-45 %) for +25 % time a sample"
    assert trade_text(histories.AUTOCAST, histories.BASELINE) is None
    assert trade_text(histories.ZERO_GRAD, histories.BASELINE) is None


# --- advice ---------------------------------------------------------------------------------------------------


async def test_the_advice_tells_reference_energy_and_bound() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "4")
        assert "in turn with the baseline" in screen_text(app)
        await press(pilot, "down", "down", "down")
        shown = screen_text(app)
        for text in ("248 mJ → 171 mJ a sample (-31 %)", "the baseline is 4.1e-06 off, this 3.0e-03"):
            assert text in shown, shown
        await press(pilot, "down", "down")
        assert "1.01x alone: data wait is 1 % of the baseline's step" in screen_text(app)


@pytest.mark.parametrize("size", SIZES)
async def test_the_advice_on_the_batch_size_has_the_sweep_and_the_finding(size) -> None:
    async with driven(histories.whole(), size=size) as (pilot, app, _control):
        await press(pilot, "4", "down", "down")
        app.query_one("#detail").scroll_to(y=14, animate=False)
        await settle(pilot)
        shown = screen_text(app)
        assert "loader = DataLoader(images," in shown
        lines = [line for line in shown.splitlines() if "◆" in line or "out of memory" in line or "batch  " in line]
        assert "step" in lines[0]
        assert "112 ms" in lines[1]
        assert "2,283" in lines[1]
        assert "34.6 GiB  ██████" in lines[1]
        assert "4,096  out of memory" in lines[2]
        await press(pilot, "down")
        assert "Batch sizes" not in app.query_one("#detail", TextPane).text.plain


def test_the_sweep_fits_into_a_narrow_view(state) -> None:
    points = sweep_of(state)
    assert [point.size for point in points] == [64, 128, 256, 4096]
    assert max(len(line) for line in sweep_text(points, Mode.INFER, 41).plain.splitlines()[:-1]) <= 41


def test_the_sweep_has_the_reports_cells_their_sentence_and_what_was_disturbed(state) -> None:
    points = sweep_of(state)
    text = sweep_text(points, Mode.TRAIN, 80, ("batch_size=128 is unreliable: the clock fell.",)).plain
    words = " ".join(text.split())
    assert words.startswith("batch step samples/s gain memory")
    for row in sweep_rows(points)[:3]:
        assert " ".join(row[:5]) in words
    assert sweep_sentence(points, Mode.TRAIN) in text
    assert "batch_size=128 is unreliable: the clock fell." in text


def test_a_trial_tells_what_it_has_shown_besides_its_speed(state) -> None:
    catalog = load_catalog()
    saving = histories.measured("checkpointing", "memory.activation_checkpointing", "blocks", 0.8, 5.0)
    peak = replace(saving.result, peak_allocated_bytes=4 * 2**30, batch_size=state.facts.workload.batch_size)
    state.facts = replace(state.facts, peak_allocated_bytes=8 * 2**30)
    state.apply(events.TrialMeasured(replace(saving, result=peak)))
    text = selection_text("checkpointing=blocks", state, catalog).plain
    assert "A step needs 4.00 GiB at its peak in place of 8.00 GiB, 50 % less" in text
    assert "batches of up to about" in text
    off = histories.measured("pin_memory", "data.pin_memory", False, 0.97, 9.1)
    state.apply(events.TrialMeasured(replace(off, candidate=replace(off.candidate, already_on=True))))
    assert "already on, worth 3.1 %" in selection_text("pin_memory=false", state, catalog).plain
