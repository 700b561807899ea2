"""Disturbed trials, which are measured again and marked, and sessions on busy machines."""

import random
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from facts import cpu_facts, host
from fake_trials import FakeRun, FakeTrials
from made_up import bench_of, failed, product, result_at
from planted import pauses_removed, plant_removers

from advisor.experiment import caveats
from advisor.experiment.caveats import busiest_programs
from advisor.export.json_report import report
from advisor.judging.judge import Judge
from advisor.machine.host import CoresInUse
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Block, Hardware, Mode, Outcome, TrialKind, TrialResult, Verdict
from advisor.report.figures import candidates_tried, settings_to_export

BUSY = "another process came to the GPU while it was measured"


class Machine:
    """Answers trials in turn, each after given seconds; it stands in for a machine with other programs."""

    def __init__(self, answers, seconds=3.0):
        self.answers, self.seconds, self.now, self.ran = list(answers), seconds, 0.0, 0

    def __call__(self):
        return self.now

    def run(self, spec, listen):
        self.ran += 1
        if self.seconds > spec.timeout_s:
            self.now += spec.timeout_s
            return TrialResult(Outcome.TIMED_OUT, reason="no result")
        self.now += self.seconds
        return result_at(1.0, disturbed=self.answers.pop(0))


def bench_on(machine, folder, monkeypatch, total_s=100.0):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(folder))
    return bench_of(machine, folder, machine, total_s=total_s)


def test_a_disturbed_baseline_is_repeated_also_where_other_programs_keep_cores_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(CoresInUse, "foreign", lambda cores: 1.4)
    run = FakeRun(tmp_path, lambda settings: result_at(1.0, disturbed="" if settings else BUSY), only=("tf32",)).run()
    assert run.started.count("baseline") == 2
    assert report(run.state, run.request)["hardware"]["host"]["foreign_cores"] == 1.4


def test_programs_that_keep_the_machine_busy_are_named_where_there_is_no_baseline(tmp_path, monkeypatch):
    monkeypatch.setattr(CoresInUse, "foreign", lambda cores: 256.0)
    monkeypatch.setattr(caveats, "busiest_programs", lambda: ["blender"])
    late = FakeRun(tmp_path, lambda settings: failed("no result (warming up)", Outcome.TIMED_OUT)).run().state.failure
    assert "(blender)" in late.hint


@pytest.mark.parametrize(
    ("answers", "ran"),
    [
        (["", ""], 2),
        ([BUSY, "", BUSY, ""], 4),  # each time the repeat is undisturbed
        ([BUSY, BUSY, BUSY], 3),  # what disturbs goes on: the second is not repeated
    ],
)
def test_a_disturbed_trial_is_repeated_as_long_as_that_helps(tmp_path, monkeypatch, answers, ran):
    machine = Machine(answers)
    bench = bench_on(machine, tmp_path, monkeypatch)
    for _ in range(2):
        bench.run(bench.spec("trial", {}))
    assert machine.ran == ran


def test_a_repeat_that_takes_much_longer_is_given_up_and_the_first_run_counts(tmp_path, monkeypatch):
    """On a busy machine the repeat of a 4 s baseline took 23 s, and ended 5 s after the budget."""
    machine = Machine([BUSY, BUSY], seconds=4.0)
    bench = bench_on(machine, tmp_path, monkeypatch, total_s=35.0)
    run = machine.run

    def slower_and_slower(spec, listen):
        result = run(spec, listen)
        machine.seconds = 30.0
        return result

    machine.run = slower_and_slower
    result = bench.run(bench.spec("baseline", {}, kind=TrialKind.BASELINE))
    assert (result.measured, result.disturbed, machine.now) == (True, BUSY, 12.0)
    machine.run, machine.seconds = run, 4.0
    bench.run(bench.spec("trial", {}))
    assert machine.ran == 3, "no other trial is repeated"


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
    assert run.started[1].startswith("combination: ")
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


HELPS = product(channels_last=1.25, autocast=1.28)
LEVELS = (1.0, 1.3, 1.8, 2.5)


class LoadedTrials(FakeTrials):
    """Trials whose blocks take longer because other programs compute: first one length, later another."""

    def __init__(self, speed, seed):
        super().__init__(speed, trial_s=2.5, build_s=5.0)
        self.draw, self.level, self.until_s = random.Random(seed), 1.0, 0.0

    def slowed(self, block):
        while self.until_s <= self.now_s:
            self.level, self.until_s = self.draw.choice(LEVELS), self.until_s + self.draw.uniform(1.0, 8.0)
        return replace(block, seconds=block.seconds * self.level * self.draw.lognormvariate(0.0, 0.05))

    @contextmanager
    def open(self, spec, listen):
        with super().open(spec, listen) as trial:
            quiet_block, quiet_result = trial.measure_block, trial._measure

            def measure_block(seconds):
                done = quiet_block(seconds)
                return self.slowed(done) if isinstance(done, Block) else done

            def measure():
                result = quiet_result()
                return replace(result, blocks=tuple(map(self.slowed, result.blocks)))

            trial.measure_block, trial._measure = measure_block, measure
            yield trial
            del trial.measure_block, trial._measure  # they hold the trial, and through it the session with its journal


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_a_stack_is_confirmed_with_its_interval_under_load(tmp_path, seed):
    state = FakeRun(tmp_path, HELPS, trials=LoadedTrials(HELPS, seed), budget_s=90.0).run().state
    stack = state.stack
    assert stack.confirmed
    assert settings_to_export(state) == dict(stack.settings)
    assert stack.comparison.ci_low <= HELPS(Settings(stack.settings)) <= stack.comparison.ci_high
    assert len([record for record in candidates_tried(state) if record.result.measured]) >= 6


class SlowedTrials(LoadedTrials):
    """Whole trials take longer, too: imports, the first steps and the warm-up wait for the cores as well."""

    @property
    def trial_s(self):
        return self.draw.choice((4.0, 5.0, 6.0, 8.0, 10.0)) if self.now_s else 5.0

    @trial_s.setter
    def trial_s(self, seconds):
        assert seconds


@pytest.mark.parametrize("seed", [0, 3, 5, 9])
def test_trials_that_overrun_leave_the_turns_their_time(tmp_path, seed):
    """Repeats once took half as long again as expected, so no time was left to confirm the stack in turns."""
    assert FakeRun(tmp_path, HELPS, trials=SlowedTrials(HELPS, seed), budget_s=90.0).run().state.stack.confirmed


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_nothing_is_exported_under_load_where_nothing_helps(tmp_path, seed):
    nothing = product()
    state = FakeRun(tmp_path, nothing, trials=LoadedTrials(nothing, seed), budget_s=90.0).run().state
    assert settings_to_export(state) == {}
