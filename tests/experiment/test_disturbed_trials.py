"""Trials that something outside disturbed: measured again once, and marked in the report and the tables."""

import subprocess
import sys
from dataclasses import replace

import pytest
from facts import cpu_facts, host
from fake_trials import FakeRun
from made_up import result_at
from planted import pauses_removed, plant_removers
from sample_session import sample_history, sample_request

from advisor.experiment import caveats
from advisor.experiment.caveats import busiest_programs
from advisor.experiment.events import TrialMeasured
from advisor.experiment.state import SessionState
from advisor.export.formats.markdown import markdown_report
from advisor.export.json_report import report
from advisor.judging.judge import Judge
from advisor.recipe.catalog import load_catalog
from advisor.records import GpuReadings, Hardware, Mode, Verdict

HOT = "the GPU slowed itself down (hardware thermal slowdown)"
BUSY = "another process came to the GPU while it was measured"


def test_the_mark_is_in_the_report_and_in_the_tables():
    history = sample_history()
    trials = (event for event in history if isinstance(event, TrialMeasured))
    event = next(event for event in trials if event.record.candidate.recipe == "channels_last")
    result = replace(event.record.result, disturbed=HOT, gpu=GpuReadings(9, 91), energy_j_per_sample=0.25)
    record = replace(event.record, result=result)
    state = SessionState.of([TrialMeasured(record) if one is event else one for one in history])
    trials = report(state, sample_request(), "0.1.0")["trials"]
    told = next(trial for trial in trials if trial["disturbed"])
    assert (told["disturbed"], told["energy_j_per_sample"], told["gpu"]["temperature_c"]) == (HOT, 0.25, 91)
    assert all(trial["gpu"] is None for trial in trials if trial is not told)
    assert f"unreliable: {HOT}" in markdown_report(state, sample_request(), load_catalog())


@pytest.mark.usefixtures("own_state")
@pytest.mark.parametrize("first", [2.0, 0.5])
def test_a_stack_that_was_disturbed_is_measured_again(tmp_path, first):
    plant_removers(tmp_path / "recipes", usual=True, first="EXACT", second="EXACT")
    whole, runs = {"planted.first": True, "planted.second": True}, []

    def speed(settings):
        if settings == whole:
            runs.append(len(runs))
        return result_at(first, disturbed=BUSY) if runs == [0] and settings == whole else pauses_removed(settings)

    run = FakeRun(tmp_path, speed, only=("first", "second"), budget_s=60.0).run()
    assert run.started[1].startswith("stack: ")
    assert run.started[2] == run.started[1]
    assert run.state.stack_settings == whole
    assert run.state.stack.comparison.verdict is Verdict.FASTER


SPIN = "import time; end = time.time() + 2\nwhile time.time() < end: pass"


def test_the_programs_that_keep_cores_busy_are_named():
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}])"
    subprocess.run([sys.executable, "-c", start], check=True)  # its child is nobody's here
    named = busiest_programs()
    assert 1 <= len(named) <= 3
    assert any(name.startswith("python") for name in named)


@pytest.mark.parametrize(
    ("foreign_cores", "disturbed", "words"),
    [(31.0, "", "other programs use 31.0 of 32 cores (blender)"), (0.0, BUSY, BUSY), (0.0, "", "")],
)
def test_other_programs_are_told_once_with_what_they_mean_for_the_result(monkeypatch, foreign_cores, disturbed, words):
    monkeypatch.setattr(caveats, "busiest_programs", lambda: ["blender"])
    facts = cpu_facts(hardware=Hardware(host=host(foreign_cores=foreign_cores)))
    judge = Judge(load_catalog(), Mode.TRAIN, result_at(1.0, disturbed=disturbed), crowded=bool(foreign_cores))
    told = caveats.of_other_programs(judge, facts)
    assert words in told
    assert ("above 1.1x" in told) is bool(words)
