"""Loops in lanes: rows as they come, lanes that hang or die, what is left out, and what a GPU may differ by."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from advisor.records import Mode
from loops import register, table
from loops.cases import NOTHING, Case
from loops.compare import Tolerance
from loops.lanes import Unit, rows_in_lanes, units_of
from loops.register import Loop, all_loops
from loops.runs import TunedRun
from loops.spread import _wider
from loops.summary import Row, Summary, document, rows_in

DECLARED = Tolerance(losses=1e-4, outputs=1e-3, movement=1e-2, states=None)
FIRST, SECOND = Case("step.zero_grad: zeros", {}), Case("step.zero_grad: manual", {})


@pytest.fixture
def run_in_lanes(tmp_path, monkeypatch):
    """Runs a loop's cases in lanes. The loop's body is called in the lane's process, which is a fork of this one."""

    def run(body, *cases, **limits):
        loop = Loop("made_up", body, Mode.TRAIN, frozenset({"step"}), {})
        monkeypatch.setitem(register._LOOPS, "made_up", loop)
        limits = {"lanes": 1, "row_limit_s": 30.0, "within_s": 60.0, "logs": tmp_path, **limits}
        return [(row.case, row.outcome, row.details) for row in rows_in_lanes([Unit(loop, cases)], "cpu", **limits)]

    return run


def only_when_tuned(act):
    """A loop that does nothing plain, and at its first tuned case what it is given."""
    calls = []

    def body(run):
        if isinstance(run, TunedRun) and not calls:
            calls.append(run)
            act()
        return {}

    return body


@pytest.mark.process
def test_lanes_yield_every_row(run_in_lanes):
    rows = run_in_lanes(lambda run: {}, NOTHING, FIRST, SECOND, lanes=2)
    assert rows == [(case.name, "same", ()) for case in (NOTHING, FIRST, SECOND)]


@pytest.mark.process
def test_a_lane_that_dies_is_a_row_and_the_next_cases_run(run_in_lanes):
    first, *others = run_in_lanes(only_when_tuned(lambda: os._exit(3)), FIRST)
    assert first == (FIRST.name, "crashed", ("its process ended with exit code 3",))
    assert others == []


@pytest.mark.process
def test_a_lane_that_hangs_is_replaced(run_in_lanes):
    def hangs_in_one_case(run):
        if isinstance(run, TunedRun) and run._tuning.settings.get("step.zero_grad") == "zeros":
            time.sleep(60)
        return {}

    rows = run_in_lanes(hangs_in_one_case, NOTHING, FIRST, SECOND, row_limit_s=4.0)
    assert [(case, outcome) for case, outcome, _ in rows] == [
        (NOTHING.name, "same"),
        (FIRST.name, "timed out"),
        (SECOND.name, "same"),
    ]


@pytest.mark.process
def test_what_there_was_no_time_for_is_said(run_in_lanes):
    rows = run_in_lanes(only_when_tuned(lambda: time.sleep(60)), FIRST, SECOND, within_s=2.0)
    assert [(case, outcome) for case, outcome, _ in rows] == [(FIRST.name, "not run"), (SECOND.name, "not run")]


def test_what_compiles_is_divided_among_lanes_and_what_times_kernels_comes_first():
    loop = all_loops()["one_batch"]
    compiled = Case("compiled stack", {"compile.mode": "default"})
    timing = Case("compile.mode: max-autotune", {"compile.mode": "max-autotune"})
    units = units_of(loop, [NOTHING, FIRST, compiled, timing])
    assert [[case.name for case in unit.cases] for unit in units] == [
        [NOTHING.name, FIRST.name],
        [compiled.name],
        [timing.name],
    ]
    assert max(units, key=lambda unit: unit.usual_s) == units[2]


def test_a_tolerance_grows_to_what_plain_runs_differ_by_within_limits():
    wider = _wider(DECLARED, [{"losses": 1.5e-4}, {"losses": 1e-4, "outputs": 1.0, "weights": 1e-3}], 5.0)
    assert wider == replace(DECLARED, losses=pytest.approx(3e-4), outputs=pytest.approx(5e-3))
    assert _wider(DECLARED, [{"weights": 3.0}], float("inf")).movement == 0.9


def test_rows_are_kept_as_they_come_and_summed_up(tmp_path):
    same = Row("plain", "nothing", "tuned", "same", (), 0.5)
    wrong = Row("plain", "captured", "plain to tuned", "different", ("losses differ",), 1.5, {"losses": 1.0})
    with Summary(tmp_path) as summary:
        for row in (same, wrong):
            summary.add(row)
            assert rows_in(tmp_path / "rows.jsonl")[-1] == row
    text = (tmp_path / "loops.md").read_text(encoding="utf-8")
    assert text == document([same, wrong])
    assert "| plain | 1 | 1 | 2.0 |" in text
    assert "2 rows: 1 same, 1 different." in text
    assert "- plain, captured (plain to tuned): different\n  - losses differ" in text


@pytest.mark.process
def test_the_command_goes_on_with_what_is_left(tmp_path, monkeypatch, capsys):
    options = ["--device", "cpu", "--lanes", "1", "--case", "zero_grad", "one_batch"]
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "tests.loops", *options, "--out", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "step.zero_grad: manual" in ran.stdout
    done = {row.case for row in rows_in(rows)}
    assert done == {"step.zero_grad: zeros", "step.zero_grad: manual"}
    monkeypatch.setattr(sys, "argv", ["loops", *options, "--skip-done", str(rows)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        table.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().out == ""
