import json
import math
from dataclasses import replace

import pytest
from sample_session import CONTRIBUTION, cpu_history, cpu_request, sample_history, sample_request, stacked_state

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.export.json_report import report
from advisor.judging.objective import Goal
from advisor.records import Objective

TRIAL_FIELDS = """recipe settings outcome reason step_ms samples_per_s speedup ci_low ci_high verdict
    peak_reserved_bytes numerics startup_s warmup_s break_even_steps"""


def made(history, request=None) -> dict:
    told = report(SessionState.of(history), request or sample_request(), "0.1.0")
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    return told


@pytest.fixture(scope="module")
def full() -> dict:
    return made(sample_history())


def test_what_was_measured_where_and_the_baseline_with_its_phases(full):
    known = {"schema": 2, "version": "0.1.0", "target": "mymodel:build", "session_s": 143.2, "cancelled": False}
    assert full.items() >= {**known, "error": None, "bottleneck": "compute"}.items()
    assert full["versions"]["torch"] == "2.11.0+cu130"
    (gpu,) = full["hardware"]["gpus"]
    assert (gpu["name"], gpu["compute_capability"]) == ("NVIDIA H200", [9, 0])
    assert "97 %" in full["bottleneck_evidence"]
    baseline = full["baseline"]
    assert (baseline["step_ms"], baseline["half_width"], baseline["phases"]["backward"]) == (26.31, 0.006, 15.94)
    assert baseline["samples_per_s"] == pytest.approx(64 / 26.31e-3)
    assert baseline["peak_reserved_bytes"] > baseline["peak_allocated_bytes"] > 2**30


def test_every_candidate_is_a_trial_and_the_baseline_is_not(full):
    ran = [trial for trial in full["trials"] if trial["outcome"] != "skipped"]
    assert [trial["recipe"] for trial in ran][:3] == ["control", "channels_last", "autocast"]
    assert len(ran) == 9
    assert all(trial.keys() >= {*TRIAL_FIELDS.split()} for trial in full["trials"])
    assert len({frozenset(trial) for trial in full["trials"]}) == 1
    best = next(trial for trial in ran if trial["recipe"] == "channels_last")
    assert best["settings"] == {"model.memory_format": "channels_last"}
    assert (best["speedup"], best["ci_low"], best["ci_high"]) == (1.39, 1.384, 1.396)
    assert best["verdict"] == "faster"
    assert best["numerics"] == {
        "class": "close",
        "declared": "close",
        "worse_than_declared": False,
        "difference": 3.1e-3,
        "from_reference": None,
        "baseline_from_reference": None,
        "text": "the first 8 losses differ by 0.31 % at most",
    }


def test_the_contribution_stands_beside_the_ratio_to_the_baseline():
    def rows_of(contribution):
        told = report(stacked_state(contribution), sample_request(), "0")
        lists = told["trials"], told["recommendations"]
        return [next(row for row in rows if row["recipe"] == "channels_last") for rows in lists]

    for row in rows_of(CONTRIBUTION):
        assert (row["speedup"], row["ci_low"], row["ci_high"]) == (9.87, 9.8, 9.9)
        assert row["contribution"] == {"speedup": 1.2, "ci_low": 1.15, "ci_high": 1.25}
        assert row["verdict"] == "faster"
    assert [row["contribution"] for row in rows_of(None)] == [None, None]


def test_a_failed_trial_has_its_reason_and_no_figures(full):
    failed = next(trial for trial in full["trials"] if trial["recipe"] == "compile")
    assert failed["outcome"] == "out_of_memory"
    assert failed["verdict"] == "failed"
    assert "2.00 GiB" in failed["reason"]
    assert failed["speedup"] is failed["step_ms"] is failed["numerics"] is None


def test_skipped_recipes_come_last_with_their_reason(full):
    skipped = full["trials"][9:]
    assert {trial["recipe"] for trial in skipped} == {"inference_mode", "num_workers", "pad_dims", "threads"}
    workers = next(trial for trial in skipped if trial["recipe"] == "num_workers")
    assert workers["reason"] == "data wait is 0.3 % of the step"
    assert workers["settings"] == workers["candidate"] == {}
    assert workers["verdict"] == workers["outcome"] == "skipped"
    known = {"recipe", "candidate", "settings", "outcome", "reason", "verdict"}
    assert all(workers[name] is None for name in workers.keys() - known)


def test_the_ranking_and_the_stack(full):
    assert [item["rank"] for item in full["recommendations"]] == [1, 2, 3, 4]
    first = {"recipe": "channels_last", "title": "Channels-last memory format", "in_stack": True}
    assert full["recommendations"][0].items() >= first.items()
    batch = next(item for item in full["recommendations"] if item["recipe"] == "batch_size")
    assert batch.items() >= {"needs_consent": True, "in_stack": False}.items()
    stack = full["stack"]
    assert stack.items() >= {"confirmed": True, "speedup": 1.969, "ci_low": 1.958, "ci_high": 1.981}.items()
    assert stack["settings"]["precision.autocast"] == "bfloat16"
    assert stack["numerics"]["class"] == "close"
    assert stack["peak_reserved_bytes"] < full["baseline"]["peak_reserved_bytes"]
    assert stack["dropped"] == {"step.zero_grad": "slower on top of the others"}


def test_gains_are_by_the_objective_and_speed_ups_by_samples():
    for objective, ratio in ((Objective.THROUGHPUT, 1.969), (Objective.MEMORY, 9.13 / 5.47)):
        history = [events.GoalSet(Goal(objective)), *sample_history()[1:]]
        told = made(history, replace(sample_request(), objective=objective))
        assert told["objective"] == objective.value
        assert told["stack"]["speedup"] == 1.969
        assert told["stack"]["verdict"] == "faster"
        assert told["stack"]["gain"]["ratio"] == pytest.approx(ratio)
        assert told["recommendations"][0]["gain"]["ratio"] == pytest.approx(1.39 if ratio > 1.9 else 1.0)


def test_the_sweep_over_batch_sizes_and_a_cpu_session_without_one(full):
    assert [(point["size"], point["knee"]) for point in full["sweep"]] == [(64, False), (128, True)]
    assert full["sweep"][0]["samples_per_s"] == full["baseline"]["samples_per_s"]
    told = made(cpu_history(), cpu_request())
    assert (told["sweep"], told["target"], told["hardware"]["gpus"]) == ([], "demo", [])
    assert "driver" in told["hardware"]["gpu_note"]
    assert told["stack"]["settings"] == {"cpu.threads": 4}


def test_what_json_has_no_number_for_is_null():
    state = SessionState.of(sample_history())
    state.baseline = replace(state.baseline, half_width=math.inf, step_ms=math.nan)
    told = report(state, sample_request(), "0.1.0")
    assert told["baseline"]["half_width"] is told["baseline"]["step_ms"] is None
    json.dumps(told, allow_nan=False)
