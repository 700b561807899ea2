"""The overview: the headline, the machine, the workload, the baseline, readings and energy."""

from dataclasses import replace

import pytest
import tui_histories as histories
from facts import h200
from tui_pilot import SIZES, SMALL, driven, press, rows_text, screen_text, settle

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.records import (
    AllReduceSweep,
    AllReduceTime,
    ClockCheck,
    GpuLink,
    GpuReadings,
    Hardware,
)
from advisor.report.figures import gpu_sentence
from advisor.tui.views.overview import OverviewView
from advisor.tui.views.overview_facts import baseline_facts, clock_facts, note_lines, source_facts, workload_facts
from advisor.tui.views.profile_text import roof_before_and_after
from advisor.tui.views.readings import cpu_text, energy_text, readings_text
from advisor.tui.widgets.picture_panel import PicturePanel


@pytest.mark.parametrize("size", SIZES)
async def test_the_overview_says_what_stands_beside_the_baseline(size) -> None:
    async with driven(histories.whole(), toasts=False, size=size) as (pilot, app, _control):
        shown = screen_text(app)
        below = () if size == SMALL else ("1921 ms in one short",)
        for text in ("248 mJ a sample", "51 °C at most", "48.2 TFLOP/s → 113 TFLOP/s", *below):
            assert text in shown, shown
        await press(pilot, "end")
        shown = screen_text(app)
        for text in ("Found in your source", "train.py:41", "# [red]", "deploy.ipynb could not be read"):
            assert text in shown, shown


async def test_the_overview_compares_clocks() -> None:
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await press(pilot, "end")
        shown = screen_text(app)
        assert "synchronised every step" in shown
        assert "34.1 ms" in shown
        assert "timed the launches, not the work" in shown


async def test_the_overview_draws_the_links_between_gpus() -> None:
    times = tuple(AllReduceTime(1024 * 4**power, 2e-5 + 1024 * 4**power / 2e11) for power in range(10))
    hardware = Hardware(histories.HOST, (h200(), h200(index=1, uuid="GPU-2")), links=(GpuLink(0, 1, 18, "4.0"),))
    measured = events.AllReduceMeasured(AllReduceSweep(2, "nccl", times))

    async with driven([events.HardwareFound(hardware), measured], toasts=False, hold=True) as (pilot, app, _control):
        assert "Links     18 NVLinks 4.0, 0-1" in screen_text(app)
        app.query_one(OverviewView).query_one(PicturePanel).scroll_visible(animate=False)
        await settle(pilot)
        for text in ("All-reduce", "bus bandwidth", "over 2 ranks by nccl"):
            assert text in screen_text(app), screen_text(app)


async def test_panels_without_anything_to_say_are_not_there() -> None:
    async with driven(histories.start()[:1], toasts=False, hold=True) as (_pilot, app, _control):
        assert not app.query_one(OverviewView).query_one(PicturePanel).display
        for panel in ("#clocks-panel", "#source"):
            assert not app.query_one(panel).display


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
    assert rows_text(source_facts(state)) == "• train.py, model.py: no habit that costs time was found."
    assert source_facts(SessionState()) == []


def test_a_baseline_that_was_disturbed_says_so(state) -> None:
    disturbed = replace(histories.BASELINE.result, disturbed="other processes used 3.1 of 16 cores")
    rows = baseline_facts(replace(histories.BASELINE, result=disturbed), state.facts)
    assert "Unreliable: other processes used 3.1 of 16 cores." in rows_text(rows)


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
    assert energy_text(less, histories.BASELINE).plain == "248 mJ → 1.60 J a sample (6.5x as much)"
    assert energy_text(less, histories.CPU_BASELINE).plain == "1.60 J a sample"
    assert energy_text(histories.BATCH.result, histories.BASELINE) is None


def test_a_remark_on_the_workload_is_told_once() -> None:
    state = SessionState.of(histories.whole())
    workload = replace(state.facts.workload, notes=("made-up batches",))
    state.facts = replace(state.facts, workload=workload)
    assert ("Note", "made-up batches") in note_lines(state, state.goal, 300.0)
    state.baseline = replace(state.baseline, result=replace(state.baseline.result, notes=workload.notes))
    assert ("Note", "made-up batches") in baseline_facts(state.baseline, state.facts)
    assert ("Note", "made-up batches") not in note_lines(state, state.goal, 300.0)


def test_what_the_session_said_is_labelled_by_its_weight_and_not_by_its_colour_only(state) -> None:
    state.messages = [events.Said("noisy", "warning"), events.Said("one GPU only")]
    assert [label for label, _ in note_lines(state, state.goal, 300.0)][-2:] == ["Warning", "Note"]
