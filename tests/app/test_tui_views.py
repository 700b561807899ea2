"""What the views say of a measurement: clocks, roof, operators, habits, readings, energy, findings, sweep, exports."""

# ruff: noqa: RUF001 - the en dash of an interval

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import tui_histories as histories
from facts import h200
from textual.widgets import Button, Input, OptionList
from tui_fakes import FakeExporter
from tui_pilot import cells, drive, screen_text, settle

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.export.format import Offer
from advisor.figures.sweep import sweep_rows
from advisor.recipe.catalog import load_catalog
from advisor.records import (
    AllReduceSweep,
    AllReduceTime,
    ClockCheck,
    GpuLink,
    GpuReadings,
    Hardware,
    Mode,
    Numerics,
    NumericsResult,
    Profile,
    SyncPlace,
)
from advisor.report.charts import Part, Stacked
from advisor.report.conclusions import sweep_of
from advisor.report.evidence import sweep_sentence
from advisor.report.figures import ceiling_figures, gpu_sentence, step_figures
from advisor.tui.saving import copy_trace, free_path
from advisor.tui.screens import OverwriteScreen
from advisor.tui.views.clocks import clock_facts
from advisor.tui.views.export import ExportView
from advisor.tui.views.habits_text import habits_text
from advisor.tui.views.overview import OverviewView
from advisor.tui.views.overview_facts import baseline_facts, source_facts, workload_facts
from advisor.tui.views.readings import cpu_text, energy_text, readings_text, trade_text
from advisor.tui.views.roof_text import roof_before_and_after, roof_facts
from advisor.tui.views.sweep_text import sweep_text
from advisor.tui.views.trial_rows import build_rows
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.operator_table import OperatorTable
from advisor.tui.widgets.phase_bar import legend
from advisor.tui.widgets.picture_panel import PicturePanel

SMALL, LARGE = (80, 24), (120, 36)


@pytest.fixture
def state() -> SessionState:
    return SessionState.of(histories.whole())


def plain(rows) -> str:
    return "\n".join(f"{label} {value}" for label, value in rows)


def whole_with(profile: Profile) -> list[events.Event]:
    """The whole session with another profile."""
    told = histories.whole()
    facts = [event for event in told if isinstance(event, events.FactsFound)][-1].facts
    return [*told, events.FactsFound(replace(facts, profile=profile))]


# --- overview -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_overview_says_what_stands_beside_the_baseline(size) -> None:
    async def check(pilot, app, control) -> None:
        shown = screen_text(app)
        below = () if size == SMALL else ("1921 ms in one short",)
        for text in ("248 mJ a sample", "51 °C at most", "48.2 TFLOP/s → 113 TFLOP/s", *below):
            assert text in shown, shown
        await pilot.press("end")
        await settle(pilot)
        shown = screen_text(app)
        for text in ("Found in your source", "train.py:41", "# [red]", "deploy.ipynb could not be read"):
            assert text in shown, shown

    await drive(histories.whole(), check, toasts=False, size=size)


async def test_the_overview_compares_clocks() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("end")
        await settle(pilot)
        shown = screen_text(app)
        assert "synchronised every step" in shown
        assert "34.1 ms" in shown
        assert "timed the launches, not the work" in shown

    await drive(histories.whole(), check, toasts=False)


async def test_the_overview_draws_the_links_between_gpus() -> None:
    times = tuple(AllReduceTime(1024 * 4**power, 2e-5 + 1024 * 4**power / 2e11) for power in range(10))
    hardware = Hardware(histories.HOST, (h200(), h200(index=1, uuid="GPU-2")), links=(GpuLink(0, 1, 18, "4.0"),))
    measured = events.AllReduceMeasured(AllReduceSweep(2, "nccl", times))

    async def check(pilot, app, control) -> None:
        assert "18 NVLinks 4.0" in screen_text(app)
        app.query_one(OverviewView).query_one(PicturePanel).scroll_visible(animate=False)
        await settle(pilot)
        for text in ("All-reduce", "bus bandwidth", "over 2 ranks by nccl"):
            assert text in screen_text(app), screen_text(app)

    await drive([events.HardwareFound(hardware), measured], check, toasts=False, hold=True)


async def test_panels_without_anything_to_say_are_not_there() -> None:
    async def check(pilot, app, control) -> None:
        assert not app.query_one(OverviewView).query_one(PicturePanel).display
        for panel in ("#clocks", "#source"):
            assert not app.query_one(panel).parent.display

    await drive(histories.start()[:1], check, toasts=False, hold=True)


def test_on_the_cpu_there_are_no_events_of_a_device() -> None:
    rows = dict(clock_facts(ClockCheck(naive_ms=4.62, synchronized_ms=4.58, block_ms=4.6)))
    assert list(rows) == ["unsynchronised", "synchronised every step", "reported"]
    assert clock_facts(None) == []


ROOF = "48.2 TFLOP/s → 113 TFLOP/s (bfloat16 peak 721 TFLOP/s)"


def test_the_roof_before_and_after_is_each_of_its_own_type(state) -> None:
    assert roof_before_and_after(state).plain == ROOF
    state.stack = replace(state.stack, settings={})
    assert roof_before_and_after(state).plain == "48.2 TFLOP/s (float32 peak 51.0 TFLOP/s)"
    state.facts = replace(state.facts, profile=replace(state.facts.profile, flops_per_step=None))
    assert roof_before_and_after(state) is None


def test_the_roof_before_is_that_of_the_baseline_beside_the_stack(state) -> None:
    state.stack = replace(state.stack, baseline_samples_per_s=981.6)
    assert roof_before_and_after(state).plain.startswith("24.1 TFLOP/s → ")


def test_present_settings_are_listed_where_they_are_not_at_their_default(state) -> None:
    rows = dict(workload_facts(state.facts, {"data.num_workers": 0}))
    assert rows["Settings"].plain == "precision.float32_matmul: highest, the other 1 at PyTorch's default"
    every = {"data.num_workers": 0, "precision.float32_matmul": "highest"}
    assert dict(workload_facts(state.facts, every))["Settings"].plain == "all 2 at PyTorch's default"


def test_a_cpu_that_is_faster_is_told() -> None:
    faster = replace(histories.BASELINE, cpu_step_ms=16.3)
    assert cpu_text(histories.BASELINE).plain == "1921 ms in one short trial, 59x as long as on the GPU"
    assert cpu_text(faster).plain.startswith("16.3 ms in one short trial: the CPU is 2.0x as fast as the GPU")
    assert cpu_text(histories.CPU_BASELINE) is None


def test_source_that_shows_nothing_is_told_too() -> None:
    state = SessionState.of([events.SourceRead(("train.py", "model.py"), ())])
    assert plain(source_facts(state)) == "• train.py, model.py: no habit that costs time was found."
    assert source_facts(SessionState()) == []


def test_a_baseline_that_was_disturbed_says_so(state) -> None:
    disturbed = replace(histories.BASELINE.result, disturbed="other processes used 3.1 of 16 cores")
    rows = baseline_facts(replace(histories.BASELINE, result=disturbed), state.facts)
    assert "Unreliable: other processes used 3.1 of 16 cores." in plain(rows)


@pytest.mark.parametrize(
    ("readings", "problem"),
    [
        (GpuReadings(9, 51, 1980, 1980, 486.2), ""),
        (GpuReadings(9, None, 1980, 1725, None), ""),
        (GpuReadings(9, 88, throttle_reasons=("power cap",)), ""),
        (GpuReadings(9, 88, throttle_reasons=("sync boost",)), "clocks limited (sync boost)"),
        (GpuReadings(9, 88, foreign_processes=2), "2 other processes held a context on the GPU"),
        (GpuReadings(9, 88, foreign_processes=None), ""),
    ],
)
def test_readings_of_the_gpu_are_those_of_the_reports_with_problems_marked(readings, problem) -> None:
    shown = readings_text(readings)
    assert shown.plain == gpu_sentence(readings)
    marked = [shown.plain[span.start : span.end] for span in shown.spans if span.style == "$warning"]
    assert "".join(marked) == problem


def test_without_readings_there_is_nothing_to_say() -> None:
    assert readings_text(None) is None
    assert readings_text(GpuReadings(0)) is None


def test_energy_is_compared_where_both_are_known() -> None:
    less = replace(histories.LAST.result, energy_j_per_sample=1.6)
    assert energy_text(less, histories.BASELINE).plain == "248 mJ → 1.60 J a sample (+545 %)"
    assert energy_text(less, histories.CPU_BASELINE).plain == "1.60 J a sample"
    assert energy_text(histories.BATCH.result, histories.BASELINE) is None


# --- profile --------------------------------------------------------------------------------------------------


async def test_operators_are_sorted_by_key_and_by_mouse() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2")
        await settle(pilot)
        table = app.query_one(OperatorTable)
        assert list(cells(table, "device").values())[:2] == ["15.2 ms", "8.90 ms"]
        await pilot.press("o", "o", "o")
        await settle(pilot)
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

    await drive(histories.whole(), check, toasts=False)


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_operators_by_shape_show_the_shapes_of_the_row_in_full(size) -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2", "g", "down", "down")
        await settle(pilot)
        shown = screen_text(app)
        assert "Operators by input shapes, per step, by GPU time" in shown
        assert "aten::native_batch_norm  [64, 256, 56, 56], [256], [256]" in shown
        await pilot.press("g")
        await settle(pilot)
        assert "input shapes" not in screen_text(app)

    await drive(histories.whole(), check, toasts=False, size=size)


async def test_a_narrow_profile_shows_one_panel_after_another() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2")
        await settle(pilot)
        assert "convolution_backward" in screen_text(app)
        await pilot.press("m")
        await settle(pilot)
        shown = screen_text(app)
        assert "of 51.0 TFLOP/s float32" in shown
        assert "convolution_backward" not in shown
        await pilot.press("end")
        await settle(pilot)
        for text in ("362 TFLOP/s  tf32", "55.1 GB/s  from pinned", "measured on 2026-07-14"):
            assert text in screen_text(app)
        await pilot.press("m")
        await settle(pilot)
        for text in ("train.py:41  1 a step, 21.3 ms", "# [red]", "the backward pass", "eval_no_grad", "5.40 GiB"):
            assert text in screen_text(app)
        await pilot.press("o")
        await settle(pilot)
        assert "by GPU time with what they call" in screen_text(app)

    await drive(histories.whole(), check, toasts=False, size=SMALL)


async def test_a_broad_profile_shows_all_panels_and_the_key_goes_through_them() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2")
        await settle(pilot)
        shown = screen_text(app)
        for text in ("Waits and habits", "Efficiency", "GPU busy", "Tensor", "1,042 a step", "19.0 ms"):
            assert text in shown, shown
        focused = []
        for _ in range(3):
            await pilot.press("m")
            await settle(pilot)
            focused.append(app.focused.id)
        assert focused == ["roof-panel", "habits-panel", "operators"]

    await drive(histories.whole(), check, toasts=False)


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_pictures_stand_in_place_of_the_panels_and_leave_again(size) -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2", "p")
        await settle(pilot)
        assert "arithmetic intensity, FLOP per byte" in screen_text(app)
        assert "float32 51.0 TFLOP/s" in screen_text(app)
        assert "Operators" not in screen_text(app)
        assert ("F forward" in screen_text(app)) is (size[1] > 30)  # a short screen has no room for both
        await pilot.press("p")
        await settle(pilot)
        assert "share of blocks" in screen_text(app)
        await pilot.press("1", "2")
        await settle(pilot)
        assert "share of blocks" in screen_text(app), "the picture stays while another view is looked at"
        await pilot.press("p")
        await settle(pilot)
        assert "Operators" in screen_text(app)
        assert "F forward" in screen_text(app)

    await drive(histories.timed(), check, size=size, toasts=False)


async def test_keys_that_need_a_profile_are_dimmed_without_one() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("2", "o", "g", "t", "m")
        await settle(pilot)
        view = app.view
        assert [name for name in view.handlers() if view.can(name)] == ["panel"]

    await drive(histories.start(), check, toasts=False, hold=True)


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
    shown = " ".join(plain(roof_facts(state)).split())
    for figure in (*step_figures(profile), *ceiling_figures(profile.ceilings)):
        assert figure.text in shown
    assert "Achieved ━━━━━━━━━━━━ 94 % of 51.0 TFLOP/s float32" in shown


def test_the_roof_without_ceilings(state) -> None:
    bare = Profile(step_ms=10.0, phases={}, flops_per_step=10**12)
    state.facts = replace(state.facts, profile=bare)
    assert plain(roof_facts(state)) == ("Step 10.0 ms\nWork 1.00 TFLOP a step\nRate 100 TFLOP/s")
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

    async def check(pilot, app, control) -> None:
        await pilot.press("2", "t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b'{"traceEvents": []}'
        assert "trace.json.gz" in screen_text(app)
        await pilot.press("t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert (tmp_path / "trace-2.json.gz").read_bytes() == trace.read_bytes()

    await drive(whole_with(replace(histories.PROFILE, trace_path=str(trace))), check, toasts=False)


async def test_a_trace_that_is_gone_is_a_toast(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def check(pilot, app, control) -> None:
        await pilot.press("2", "t")
        await app.workers.wait_for_complete()
        await settle(pilot)
        shown = screen_text(app)
        assert "The trace was not saved" in shown
        assert "No such file or directory: baseline-trace.json.gz" in shown
        assert list(tmp_path.iterdir()) == []

    await drive(histories.whole(), check, toasts=False)


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
    assert signs[histories.WORSE.candidate.name] == "▲≠⇄"
    assert signs[histories.WORKERS.candidate.name] == "▲!"
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
    async def check(pilot, app, control) -> None:
        await pilot.press("3", *["down"] * 7)
        await settle(pilot)
        shown = screen_text(app)
        assert "▲!" in shown
        assert "Unreliable: another process (pid 911, python)" in shown
        assert "4 workers on 16 cores [/]" in shown

    await drive(histories.whole(), check, toasts=False, size=SMALL)


def test_a_skipped_recipe_whose_habit_is_in_the_source_says_where(state) -> None:
    state.skipped = {"loss_sync": "the step reads no loss"}
    text = selection_text("skipped:loss_sync", state).plain
    assert text.startswith("loss_sync was not tried\nthe step reads no loss\ntrain.py:41")


def test_a_trade_is_memory_saved_for_time_lost() -> None:
    slower = replace(histories.measured("checkpointing", "model.checkpointing", True, 0.8, 5.0))
    assert trade_text(slower, histories.BASELINE).plain == "saves 4.10 GiB (-45 %) for +25 % time a sample"
    assert trade_text(histories.AUTOCAST, histories.BASELINE) is None
    assert trade_text(histories.ZERO_GRAD, histories.BASELINE) is None


# --- export ---------------------------------------------------------------------------------------------------


async def test_a_saved_file_is_verified_and_a_report_is_not(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def check(pilot, app, control) -> None:
        app.context.exporter.verifies = True
        await pilot.press("5", "s")
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert [call for call in control.calls if call[0] == "verify"] == [("verify", "tuned.yaml")]
        assert app.context.state.verification.speedup == 1.9
        assert "verified: 1.9x in a plain loop" in " ".join(screen_text(app).split())
        app.query_one(ExportView).choose("report")
        await settle(pilot)
        await pilot.press("s")
        await settle(pilot)
        assert [call[0] for call in control.calls].count("verify") == 1

    await drive(histories.whole(), check)


# --- advice ---------------------------------------------------------------------------------------------------


async def test_the_advice_tells_reference_energy_and_bound() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("4")
        await settle(pilot)
        assert "in turn with the baseline, noise ±0.6 %" in screen_text(app)
        await pilot.press("down", "down", "down")
        await settle(pilot)
        shown = screen_text(app)
        for text in ("248 mJ → 171 mJ a sample (-31 %)", "the baseline is 4.1e-06 off, this 3.0e-03"):
            assert text in shown, shown
        await pilot.press("down", "down")
        await settle(pilot)
        assert "1.01x: data wait is 1 % of the step" in screen_text(app)

    await drive(histories.whole(), check, toasts=False)


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_advice_on_the_batch_size_has_the_sweep_and_the_finding(size) -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("4", "down", "down")
        await settle(pilot)
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
        await pilot.press("down")
        await settle(pilot)
        assert not app.query_one("#sweep").display

    await drive(histories.whole(), check, toasts=False, size=size)


def test_in_inference_the_sweep_is_latency_against_throughput(state) -> None:
    points = sweep_of(state)
    assert [point.size for point in points] == [64, 128, 256, 4096]
    chart = sweep_text(points, Mode.INFER, 68).plain
    assert "latency" in chart
    assert "●" in chart
    assert "latency  " not in sweep_text(points, Mode.TRAIN, 68).plain
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


# --- export ---------------------------------------------------------------------------------------------------


async def test_what_a_command_makes_is_shown_and_cannot_be_saved(monkeypatch) -> None:
    offers = (Offer("report", "Compiled model", "model.pt2", by_command=True), Offer("settings", "Settings", "t.yaml"))
    monkeypatch.setattr(FakeExporter, "formats", lambda self: offers)

    async def check(pilot, app, control) -> None:
        await pilot.press("5")
        await settle(pilot)
        assert not app.query_one("#save-row").display
        assert "writes model.pt2" not in screen_text(app)
        assert app.check_action("in_view", ("save",)) is None
        await pilot.press("s")
        await settle(pilot)
        assert not app.context.exporter.saved
        await pilot.press("down")
        await settle(pilot)
        assert app.query_one("#save-row").display

    await drive(histories.whole(), check, toasts=False)


async def test_enter_on_a_format_chooses_it_and_stays() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("5", "down", "enter")
        await settle(pilot)
        assert app.query_one("#formats", OptionList).has_focus
        assert app.view.chosen.id == "config"
        assert "+amp: bfloat16" in screen_text(app)

    await drive(histories.whole(), check, toasts=False)


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        (["o"], True),
        (["right", "enter"], True),
        (["escape"], False),
        (["right", "right", "enter"], False),
    ],
)
async def test_a_file_that_exists_is_overwritten_only_when_asked_for(tmp_path, monkeypatch, keys, written) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("mine")

    async def check(pilot, app, control) -> None:
        await pilot.press("5", "s")
        await settle(pilot)
        assert isinstance(app.screen, OverwriteScreen)
        assert "tuned.yaml exists already." in screen_text(app)
        await pilot.press(*keys)
        await settle(pilot)
        assert not isinstance(app.screen, OverwriteScreen)
        assert bool(app.context.exporter.saved) is written
        assert (Path("tuned.yaml").read_text() == "mine") is not written
        assert app.query_one("#formats", OptionList).has_focus

    await drive(histories.whole(), check, toasts=False, size=SMALL)


async def test_another_name_is_offered_and_waits_in_the_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("mine")

    async def check(pilot, app, control) -> None:
        await pilot.press("5", "s")
        await settle(pilot)
        assert app.focused is app.screen.query_one("#rename", Button)
        await pilot.press("enter")
        await settle(pilot)
        path = app.query_one("#path", Input)
        assert path.has_focus
        assert path.value == "tuned-2.yaml"
        await pilot.press("enter")
        await settle(pilot)
        assert Path("tuned-2.yaml").exists()
        assert Path("tuned.yaml").read_text() == "mine"

    await drive(histories.whole(), check, toasts=False, size=SMALL)


async def test_of_the_own_config_nothing_is_asked(tmp_path) -> None:
    own = tmp_path / "train.yaml"
    own.write_text("lr: 0.1\n")

    async def check(pilot, app, control) -> None:
        await pilot.press("5")
        app.query_one("#path", Input).value = str(own)
        await pilot.press("s")
        await settle(pilot)
        assert not isinstance(app.screen, OverwriteScreen)

    await drive(histories.whole(), check, toasts=False, config_path=str(own))
