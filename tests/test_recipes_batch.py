"""Recipes of the batch and of the optimizer that goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from facts import GIB, adamw_facts, cpu_facts, gpu_facts, host
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from advisor.catalog import load_catalog
from advisor.records import (
    BaselineRecord,
    Block,
    Candidate,
    Hardware,
    Mode,
    Outcome,
    TrialRecord,
    TrialResult,
)
from advisor.sweep import HEADINGS, knee, knee_of, sweep_chart, sweep_points, sweep_rows

CATALOG = load_catalog()


def proposed(recipe_id, facts):
    return [candidate.value for candidate in CATALOG.propose(facts, only=[recipe_id]).candidates]


def reason(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    assert not proposals.candidates
    return proposals.skipped[recipe_id]


# --- batch size -----------------------------------------------------------------------------------------------


def test_the_sweep_goes_up_to_the_memory_of_the_machine():
    assert proposed("batch_size", gpu_facts(batch_size=4))[-1] == 4 * 256
    small = Hardware(host=host(memory_available_bytes=GIB))
    on_small = cpu_facts(device_memory_bytes=0, hardware=small, parameter_bytes=GIB)
    assert "not to fit" in reason("batch_size", on_small)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (gpu_facts(), "4 times the learning rate (linear scaling)"),
        (gpu_facts(optimizer=adamw_facts()), "2 times the learning rate (square-root scaling)"),
    ],
)
def test_the_reason_says_what_a_larger_batch_asks_for(facts, expected):
    text = CATALOG["batch_size"].why(facts, 128)
    assert expected in text
    assert "With 128 samples in place of 32" in text
    assert "warm-up" in text
    assert "weight decay" in text


def test_inference_needs_no_advice_on_training():
    assert "learning rate" not in CATALOG["batch_size"].why(gpu_facts(mode=Mode.INFER), 128)
    assert "learning rate" not in CATALOG["batch_size"].why(gpu_facts(), 0)


@pytest.mark.parametrize("data", ["loader", "batch", None])
def test_the_code_runs_for_a_loader_and_for_one_batch(data):
    images = torch.arange(12.0)
    given_data = {"loader": DataLoader(TensorDataset(images), batch_size=3), "batch": (images[:3],), None: None}[data]
    names = {"torch": torch, "loader": given_data}
    code = CATALOG["batch_size"].code(6)
    exec(code, names)
    assert "make your batches of 6 samples" in code
    if data == "loader":
        assert [len(batch[0]) for batch in names["loader"]] == [6, 6]
    else:
        assert names["loader"] is given_data


# --- the sweep ------------------------------------------------------------------------------------------------


def baseline(size=32, rate=1000.0, peak=GIB):
    step_ms = 1e3 * size / rate
    blocks = (Block(10, 10 * size, 10 * step_ms / 1e3),)
    result = TrialResult(Outcome.MEASURED, batch_size=size, blocks=blocks, peak_reserved_bytes=peak)
    return BaselineRecord(result, step_ms, rate, 0.005)


def record(size, rate=None, *, peak=GIB, outcome=Outcome.MEASURED, with_stack=False):
    candidate = Candidate("batch_size", "data.batch_size", size)
    settings = {**candidate.settings, **({"step.zero_grad": "zeros"} if with_stack else {})}
    result = TrialResult(outcome, batch_size=size, peak_reserved_bytes=peak if rate else None)
    known = {"samples_per_s": rate, "step_ms": 1e3 * size / rate} if rate else {}
    return TrialRecord(candidate, settings, result, **known)


SWEEP = [record(64, 1800.0), record(128, 2600.0), record(256, 2640.0, peak=2 * GIB)]


def test_the_knee_is_the_smallest_size_that_is_nearly_the_best():
    assert knee([(32, 1000.0), (64, 1800.0), (128, 2600.0), (256, 2640.0)]) == 128
    assert knee([(32, 1000.0), (64, 900.0)]) == 32
    assert knee([]) is None


@given(st.dictionaries(st.integers(1, 4096), st.floats(1.0, 1e6), min_size=1), st.floats(0.0, 0.5))
def test_no_smaller_size_reaches_the_rate_of_the_knee(curve, tolerance):
    size = knee(curve.items(), tolerance)
    best = max(curve.values())
    assert curve[size] >= (1 - tolerance) * best
    assert all(rate < (1 - tolerance) * best for smaller, rate in curve.items() if smaller < size)


def test_the_points_are_the_baseline_and_what_was_tried_alone():
    other = replace(record(64, 5.0), candidate=Candidate("control", "session.control", True))
    skipped = record(1024, outcome=Outcome.SKIPPED)
    in_company = record(2048, 9999.0, with_stack=True)
    out = record(512, outcome=Outcome.OUT_OF_MEMORY)
    points = sweep_points(baseline(), [*reversed(SWEEP), other, skipped, in_company, out])
    assert [point.size for point in points] == [32, 64, 128, 256, 512]
    assert points[-1].problem == "out of memory"
    assert knee_of(points) == 128


def test_a_size_without_a_margin_of_memory_is_not_recommended():
    steep = [record(64, 2000.0), record(128, 4000.0, peak=15 * GIB)]
    points = sweep_points(baseline(), steep, memory_bytes=16 * GIB)
    assert points[-1].problem == "leaves too little memory free"
    assert knee_of(points) == 64
    assert knee_of(sweep_points(baseline(), steep, memory_bytes=80 * GIB)) == 128


def test_the_rows_name_the_knee_and_the_size_that_ran_out():
    rows = sweep_rows(sweep_points(baseline(), [*SWEEP, record(512, outcome=Outcome.OUT_OF_MEMORY)]))
    assert all(len(row) == len(HEADINGS) for row in rows)
    assert [row[0] for row in rows] == ["32", "64", "128", "256", "512"]
    assert [row[-1] for row in rows] == ["", "", "knee", "", "out of memory"]
    assert rows[2][1:5] == ("49.2 ms", "2,600 samples/s", "2.60x", "1.00 GiB")
    assert rows[4][1:4] == ("–", "–", "")  # noqa: RUF001 - what was not measured


def test_the_chart_of_training_has_a_bar_for_each_size():
    lines = sweep_chart(sweep_points(baseline(), SWEEP), Mode.TRAIN).splitlines()
    assert [line.split()[0] for line in lines] == ["32", "64", "128", "256"]
    bars = [line.count("█") for line in lines]
    assert bars == sorted(bars)
    assert [line.endswith("knee") for line in lines] == [False, False, True, False]


def test_the_chart_of_inference_sets_throughput_over_latency():
    lines = sweep_chart(sweep_points(baseline(), SWEEP), Mode.INFER).splitlines()
    assert lines[0] == "2,640 samples/s"
    assert lines[-1].split() == ["32.0", "ms", "latency", "97.0", "ms"]
    rows = {size: number for number, line in enumerate(lines[1:-2]) for size in (32, 64, 128) if f" {size}" in line}
    assert rows[32] > rows[64] > rows[128]
    assert "◆ 128" in "\n".join(lines)
    assert max(map(len, lines)) <= 60


def test_one_point_is_no_chart():
    assert sweep_chart(sweep_points(baseline(), []), Mode.TRAIN) == ""
