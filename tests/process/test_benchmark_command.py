"""The benchmark's journals, lanes, command and tables."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import benchmark
import exports
import lanes
import measure
import msgspec
import pytest
from catalogue import WORKLOADS
from options import Options
from processes import FailedError, TooSlowError
from session import Session, compiles, events_of, session_of
from tables import document, expert_of, share_at

from advisor.experiment.events import SessionFinished, StackMeasured
from advisor.records import Outcome, StackRecord, TimeSpent, TrialResult

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "benchmark.py"


# --- sessions -------------------------------------------------------------------------------------------------


def journal_of(*events):
    """Events as a journal holds them: each after the seconds that are given, from 1000 s on."""
    return [
        {"event": type(event).__name__, "at": 1000 + after_s, "data": msgspec.to_builtins(event)}
        for after_s, event in events
    ]


def stack(outcome=Outcome.MEASURED, **settings):
    keys = {name.replace("__", "."): value for name, value in settings.items()}
    return StackMeasured(StackRecord(keys, TrialResult(outcome)))


def example_session():
    events = journal_of(
        (12, stack(precision__autocast="bfloat16")),
        (40, stack(Outcome.FAILED, compile__mode="max-autotune")),
        (50, stack(precision__autocast="bfloat16", compile__mode="default")),
        (70, SessionFinished(False, 70.0, TimeSpent(40.0, 20.0, 75.0))),
    )
    final = {"compile.mode": "default"}
    reported = {"speedup": 2.0, "ci_low": 1.9, "ci_high": 2.1}
    return session_of(events, started_at=1000, wall_s=72.0, budget_s=120, settings=final, stack=reported)


def test_a_journal_tells_the_stack_of_each_moment():
    session = example_session()
    assert session.known_at(5) == {}
    assert session.known_at(30) == {"precision.autocast": "bfloat16"}
    assert session.known_at(60) == {"precision.autocast": "bfloat16", "compile.mode": "default"}
    assert session.known_at(70) == session.known_at(120) == session.settings
    assert session.known_at(300) is None
    assert (session.first_stack_s, session.first_compiled_s) == (12, 50)
    assert session.reported == (2.0, 1.9, 2.1)
    assert session.outside_share == pytest.approx(0.2)


def test_a_session_without_a_stack_has_none_at_any_moment():
    session = session_of([], started_at=0, wall_s=20.0, budget_s=20, settings={}, stack={})
    assert session == Session(wall_s=20.0, budget_s=20, settings={})
    assert session.first_stack_s is None
    assert session.known_at(10) == {}


@pytest.mark.parametrize(
    ("settings", "compiled"),
    [({"compile.mode": "default"}, True), ({"compile.mode": "none"}, False), ({"step.cuda_graph": True}, False)],
)
def test_settings_that_compile_are_known(settings, compiled):
    assert compiles(settings) == compiled


def test_a_journal_that_was_cut_short_is_read_to_there(tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"schema": 1}\n{"event": "Said", "at": 1, "data": {}}\n{"event": "St', encoding="utf-8")
    assert [event["event"] for event in events_of(journal)] == ["Said"]


# --- lanes ----------------------------------------------------------------------------------------------------


def options_in(folder, **others):
    return Options(folder, folder, ("baseline",), budget_s=120, command="python benchmark.py", **others)


def queue(folder, *workloads, **limits):
    limits = {"lanes": 1, "expected_s": 120, "within_s": None, "workload_limit_s": 10.0, **limits}
    return lanes.Lanes(workloads, options_in(folder), **limits)


@pytest.mark.parametrize(
    ("failure", "tried", "stack"),
    [
        (FailedError("no capture"), 3, "bfloat16, not compiled, one CUDA graph"),
        (TooSlowError("too slow"), 2, "bfloat16, not compiled, one CUDA graph"),
    ],
)
def test_an_expert_falls_back_to_the_strongest_stack_that_runs(tmp_path, monkeypatch, failure, tried, stack):
    attempts = []

    def apart(self, name, function, *arguments, limit_s=None):
        choices = arguments[2]
        attempts.append(choices)
        if choices.compile_mode:
            raise failure
        return {"step_ms": 1.0, "machine": "a machine"}

    monkeypatch.setattr(measure.Measurement, "_apart", apart)
    measurement = measure.Measurement(WORKLOADS["fcos"], options_in(tmp_path), lambda text: None)
    measurement._time("expert")
    assert len(attempts) == tried
    measurement._time("expert")
    assert len(attempts) == tried + 1  # the second run begins with the stack that ran
    variant = json.loads((tmp_path / "fcos.json").read_text(encoding="utf-8"))["variants"]["expert"]
    assert (variant["stack"], len(variant["runs"])) == (stack, 2)
    assert len(variant["fallbacks"]) == tried - 1


def test_the_queue_gives_the_longest_workload_first_and_none_without_time(tmp_path):
    short, long = WORKLOADS["mlp12"], WORKLOADS["t5"]
    assert [queue(tmp_path, short, long)._next(), queue(tmp_path, short)._next()] == [long, short]
    within = queue(tmp_path, short, long, within_s=120 + short.timing_s + 5)
    assert within._next() is short
    within.started -= 60
    assert within._next() is None
    assert within.left == [long]


def test_lanes_share_cores_and_gpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [lanes.cores_of(lane, 4) for lane in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lanes.cores_of(0, 1) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert lanes.environment_of(2, 4) == {"CUDA_VISIBLE_DEVICES": "2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert lanes.environment_of(1, 2) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert lanes.environment_of(0, 1) == {}


def test_a_workload_that_cannot_be_measured_has_a_reason(tmp_path, monkeypatch):
    broken = replace(WORKLOADS["mlp12"], target=f"{tmp_path / 'nothing.py'}:build")
    monkeypatch.setitem(WORKLOADS, "mlp12", broken)
    here, there = Pipe()
    here.send("mlp12")
    monkeypatch.setenv(lanes.NVML_CHECK, "0")
    lane = threading.Thread(target=lanes.serve, args=(there, 0, [], options_in(tmp_path)))
    lane.start()
    assert here.recv().startswith("FileNotFoundError: ")
    here.close()
    lane.join(10)
    assert not lane.is_alive()


def test_the_reason_stands_beside_what_was_measured(tmp_path):
    file = tmp_path / "mlp12.json"
    file.write_text(json.dumps(result_of("12-block MLP", baseline=[2, 2])), encoding="utf-8")
    lanes.note_failure(file, WORKLOADS["mlp12"], "took longer than 400 s")
    text = document([json.loads(file.read_text(encoding="utf-8"))])
    assert "| 12-block MLP | host-bound | 2 ms (2-2) | took longer than 400 s | took longer than 400 s |" in text
    assert "12-block MLP was not measured to its end: took longer than 400 s." in text


# --- the command and its table --------------------------------------------------------------------------------


def result_of(title, *, searches=None, **step_ms):
    timed = {name.replace("_", " "): {"runs": [{"step_ms": ms} for ms in times]} for name, times in step_ms.items()}
    if "advisor" in timed:
        timed["perf-advisor"] = timed.pop("advisor")
    common = {"machine": "a machine", "versions": "versions", "date": "2026-01-02", "command": "python benchmark.py"}
    return {**common, "title": title, "searches": searches or {}, "variants": timed}


def test_results_become_tables():
    session = {
        "wall_s": 121.2,
        "budget_s": 120,
        "settings": {"precision.autocast": "bfloat16"},
        "stack": "precision.autocast: bfloat16",
        "reported": [2.0, 1.9, 1.95],
        "outside_share": 0.1,
        "first_stack_s": 9.0,
        "first_compiled_s": None,
        "variants": {"30": "baseline", "60": "perf-advisor at 60 s", "120": "perf-advisor"},
    }
    searches = {"peer": {"wall_s": 83.4, "stack": "amp_bf16 compile=default"}, "perf-advisor": session}
    first = result_of(
        "first", searches=searches, baseline=[20, 20], expert=[10, 10.2], peer=[12.5, 12.5], advisor=[10, 10]
    )
    first["variants"]["perf-advisor at 60 s"] = {"runs": [{"step_ms": 12.625}]}
    second = result_of("second", baseline=[4, 4], expert=[2, 2], peer=[2, 2], advisor=[1, 1])
    second["variants"]["peer"] = {"failed": "cannot run it: a | b"}
    text = document([first, second])
    assert (
        "| first | - | 20 ms (20-20) | 10.1 ms (10-10.2) | 10 ms (10-10) | 1.010x (1.000-1.020) "
        "| 2.000x (2.000-2.000) | 12.5 ms (12.5-12.5) | 1.250x (1.250-1.250) | 83 s |"
    ) in text
    assert "| second | - | 4 ms (4-4) | 2 ms (2-2) | 1 ms (1-1) | 2.000x (2.000-2.000) | 4.000x" in text
    assert "cannot run it: a / b" in text
    assert (
        "| first | 0.505 | 0.800 | 1.010 | - | 1.010 | 9 s | - | 10% | 121 s of 120 s | 2.000x (1.900-1.950) "
        "| 2.000x, outside |"
    ) in text
    assert "| geometric mean | 0.505 of 1 | 0.800 of 1 | 1.010 of 1 | - | 1.010 of 1 | median 9 s | - |" in text
    assert "The reported 95 % interval holds the ratio of the plain loops in 0 of 1 workloads." in text
    assert "perf-advisor over the expert: 1.421x in geometric mean over 2 workloads, lowest 1.010x (first)." in text
    assert "perf-advisor over pytorch-autotune: 1.250x in geometric mean over 1 workload, lowest" in text
    assert "- first, perf-advisor: precision.autocast: bfloat16" in text
    assert text.count("- machine: a machine") == 1


def test_exported_files_are_held_against_what_was_reported():
    session = {
        "settings": {"precision.autocast": "bfloat16"},
        "stack": "precision.autocast: bfloat16",
        "reported": [2.0, 1.9, 2.1],
        "reported_ms": 10.0,
        "reported_before_ms": 20.0,
        "variants": {"30": "baseline", "60": "perf-advisor"},
    }
    result = result_of("one", searches={"perf-advisor": session}, baseline=[20, 21], expert=[10], advisor=[10.2])
    result["variants"]["Python file"] = {"runs": [{"step_ms": 10.4}]}
    result["variants"]["expert"]["fallbacks"] = ["bfloat16, compiled: took longer than 40 s"]
    assert [exports.within(result, name) for name in exports.FILES] == [True, False]
    assert exports.not_as_reported(result) == ["Python file"]
    broken = result_of("two", baseline=[4, 4.4])
    broken["variants"]["perf-advisor"] = {"failed": "the session ended | with exit code 3"}
    text = exports.exports_document([result, broken])
    assert (
        "| one | - | 10 ms | 10.2 ms | 10.4 ms | 1.020 | 1.040 | no | 20.5 ms (20-21) | 1.025 | 1.050 | yes "
        "| 10 ms, gave up compiling | 0.488 | 0.980 |"
    ) in text
    assert "| two | - | - | failed | - | - | - | - | 4.2 ms (4-4.4) | - | 1.100 | - | - | - | - |" in text
    assert "| median 7.5%, most 10.0% |" in text
    assert "YAML file: the step is within 3 % of the reported one in 1 of 1 workloads." in text
    assert "- two, perf-advisor: the session ended / with exit code 3" in text


@pytest.fixture
def printed(monkeypatch, capsys):
    """The output of a command that measures nothing, which needs no process of its own."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        benchmark.main()
        return capsys.readouterr()

    return run


PYTHON_FILE = """
def prepare(model, optimizer=None, loader=None):
    return model, optimizer, loader


def train_step(model, optimizer, loss):
    def step(batch):
        *inputs, target = batch
        optimizer.zero_grad()
        value = loss(model(*inputs), target)
        value.backward()
        optimizer.step()
        return value.detach()

    return step
"""


def test_the_command_times_both_exported_files_and_goes_on_with_what_is_left(tmp_path, printed):
    """The session is a made-up one whose step no file can reach, so both files are timed once more."""
    session = msgspec.to_builtins(example_session()) | {"reported_ms": 1e-6, "known": {"30": {}, "60": None}}
    session |= {"stack": "step.zero_grad: none", "settings": {"step.zero_grad": "none"}}
    (tmp_path / "mlp12.json").write_text(json.dumps({"searches": {"perf-advisor": session}}), encoding="utf-8")
    (tmp_path / "mlp12.yaml").write_text("step.zero_grad: none\n", encoding="utf-8")
    (tmp_path / "mlp12.py").write_text(PYTHON_FILE, encoding="utf-8")
    lines = tmp_path / "lines.jsonl"
    options = ["--small", "--exports", "--continue", "--timed", "0.05", "--results", tmp_path, "--expert-limit", "1"]
    command = [sys.executable, BENCHMARK, *options, "mlp12"]
    ran = subprocess.run([*command, "--lines", lines], capture_output=True, text=True, check=True)
    said = [line.partition("mlp12: ")[2].partition(":")[0] for line in ran.stderr.splitlines() if " ms" in line]
    files = ["Python file", "perf-advisor"]
    assert [name for name in said if name != "expert"] == ["baseline", *files, "baseline", *reversed(files)]
    assert json.loads(lines.read_text(encoding="utf-8"))["finished"]
    assert "| 1e-06 ms |" in ran.stdout
    (tmp_path / "mlp12.json").unlink()
    again = printed(*command[2:], "--skip-done", lines)
    assert again.out == ran.stdout
    assert "mlp12" not in again.err


def test_a_moment_has_no_share_when_its_stack_was_not_timed():
    session = {"variants": {"30": "perf-advisor at 30 s"}}
    result = result_of("one", searches={"perf-advisor": session}, baseline=[4], expert=[2], advisor=[1])
    result["variants"]["perf-advisor at 30 s"] = {"runs": [], "failed": "failed: out of memory"}
    assert share_at(result, 30) is None
    assert share_at(result, 60) is None


def test_a_reason_is_a_row_of_its_own_where_only_a_session_ended(tmp_path):
    file = tmp_path / "mlp12.json"
    file.write_text(json.dumps({"searches": {"perf-advisor": {"wall_s": 12.0}}}), encoding="utf-8")
    lanes.note_failure(file, WORKLOADS["mlp12"], "its lane ended with exit code 1")
    assert "| 12-block MLP | host-bound | its lane ended" in document([json.loads(file.read_text(encoding="utf-8"))])


def test_the_expert_is_the_fastest_of_those_who_finished():
    result = result_of("one", expert_0=[3, 3], expert_1=[2, 2], expert_2=[1])
    result["variants"]["expert 2"]["failed"] = "failed: out of memory"
    assert expert_of(result) == "expert 1"


def test_the_command_measures_in_turn_and_joins_the_results(tmp_path, printed):
    session = msgspec.to_builtins(example_session())
    known = {"30": {}, "60": {"step.zero_grad": "zeros"}, "120": {"step.zero_grad": "none"}, "300": None}
    session |= {"stack": "step.zero_grad: none", "settings": {"step.zero_grad": "none"}, "known": known}
    (tmp_path / "mlp12.json").write_text(json.dumps({"searches": {"perf-advisor": session}}), encoding="utf-8")
    options = ["--small", "--continue", "--variants", "baseline,perf-advisor", "--timed", "0.05", "--results", tmp_path]
    ran = subprocess.run([sys.executable, BENCHMARK, *options, "mlp12"], capture_output=True, text=True, check=True)
    said = [line.partition("mlp12: ")[2].partition(":")[0] for line in ran.stderr.splitlines() if " mlp12: " in line]
    stacks = ["baseline", "perf-advisor", "perf-advisor at 60 s"]
    assert said == ["perf-advisor searched for 72 s", *stacks, *reversed(stacks)]
    result = json.loads((tmp_path / "mlp12.json").read_text(encoding="utf-8"))
    assert {name: len(variant["runs"]) for name, variant in result["variants"].items()} == dict.fromkeys(stacks, 2)
    assert result["searches"]["perf-advisor"]["variants"] == {
        "30": "baseline",
        "60": "perf-advisor at 60 s",
        "120": "perf-advisor",
    }
    assert result["finished"]
    assert document([result]) == ran.stdout.strip()
    (tmp_path / "mlp12.report.json").write_text("{}", encoding="utf-8")
    assert printed("--table", *tmp_path.glob("*.json")).out == ran.stdout
    assert "| 12-block MLP, small |" in ran.stdout
