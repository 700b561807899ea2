"""Compilation in a process beside the trials, with real processes."""

import dataclasses
import pickle
import subprocess
import sys
import time

import psutil
import pytest
from planted import TINY_TARGET, plant
from trial_processes import SOON_S, appears, building, gone, run, spec_of, until

from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Outcome, TargetSpec, TrialKind
from advisor.runner.trials import Runner

NOTES_ITS_PROCESS = "open(os.path.join(os.path.dirname(__file__), {!r}), 'a').write(f'{{os.getpid()}}\\n')"

pytestmark = pytest.mark.usefixtures("real_sessions")
BUDGET_S = 200.0
COMPILING = {"planted.compiling": True}
LATER = Settings({**COMPILING, "control.noop": True})
SLEEPS = f"{NOTES_ITS_PROCESS.format('pid')}; time.sleep(600)"
# A trial is built once the other has begun.
BEGUN = """
note = os.path.join(os.path.dirname(__file__), "pid")
while not (os.path.exists(note) and os.path.getsize(note)):
    time.sleep(0.02)
"""


@pytest.fixture
def runner():
    runner = Runner()
    yield runner
    runner.end_beside()


@pytest.fixture
def specs(tmp_path):
    """Make the spec of a target's text; each has a file of its own."""

    def make(name, text, **changes):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        spec = dataclasses.replace(spec_of(tmp_path, f"{name}.py"), log_path=str(tmp_path / "logs" / f"{name}.log"))
        return dataclasses.replace(spec, trial_id=name, **changes)

    return make


def pid_in(folder):
    return int(appears(folder / "pid")[0])


def test_a_trial_is_built_and_timed_beside_it(runner, specs, tmp_path):
    runner.compile_beside(specs("beside", building(SLEEPS), kind=TrialKind.COMPILE))
    with runner.open(specs("trial", building(BEGUN)), lambda message: None) as trial:
        assert trial.result().measured
        assert trial.spec.beside == pid_in(tmp_path)
    assert psutil.Process(pid_in(tmp_path)).is_running()
    assert runner.compiled_beside() is None


def test_its_end_is_told_once(runner, specs):
    runner.compile_beside(specs("beside", TINY_TARGET, kind=TrialKind.COMPILE))
    result = until(runner.compiled_beside)
    assert result.outcome is Outcome.MEASURED
    assert result.warmup_s > 0
    assert runner.compiled_beside() is None


def test_the_time_that_it_stood_still_is_not_its_own(runner, specs):
    runner.compile_beside(specs("beside", building("time.sleep(0.5)"), kind=TrialKind.COMPILE))
    with runner.beside_stopped():
        time.sleep(2.0)
    began = time.monotonic()
    result = runner.compiled_beside(SOON_S)
    assert result.outcome is Outcome.MEASURED
    assert result.wall_s <= time.monotonic() - began + 1.5


def test_its_failure_is_no_failure_of_a_trial(runner, specs):
    runner.compile_beside(specs("beside", building("os._exit(5)"), kind=TrialKind.COMPILE))
    assert run(runner, specs("trial", TINY_TARGET)).measured
    result = runner.compiled_beside(SOON_S)
    assert (result.outcome, result.warmup_s) == (Outcome.CRASHED, None)


@pytest.mark.parametrize("end", ["end_beside", "cancel"])
def test_it_ends_with_the_session(runner, specs, tmp_path, end):
    runner.compile_beside(specs("beside", building(SLEEPS), kind=TrialKind.COMPILE))
    pid = pid_in(tmp_path)
    getattr(runner, end)()
    assert gone(pid)


def test_it_stands_still_while_the_turns_are_timed(runner, specs, tmp_path):
    with runner.beside_stopped():  # nothing compiles
        pass
    runner.compile_beside(specs("beside", building(SLEEPS), kind=TrialKind.COMPILE))
    process = psutil.Process(pid_in(tmp_path))

    with runner.beside_stopped():
        assert until(lambda: process.status() == psutil.STATUS_STOPPED)
    assert until(lambda: process.status() != psutil.STATUS_STOPPED)


STOPS_IT = """\
import pickle, sys, time
from advisor.runner.trials import Runner

runner = Runner()
runner.compile_beside(pickle.load(sys.stdin.buffer))
sys.stdin.buffer.read(1)
with runner.beside_stopped():
    print("stopped", flush=True)
    time.sleep(60)
"""


def test_it_ends_with_a_session_that_is_killed_while_it_stands_still(specs, tmp_path):
    spec = specs("beside", building(SLEEPS), kind=TrialKind.COMPILE)
    with subprocess.Popen([sys.executable, "-c", STOPS_IT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        session.stdin.write(pickle.dumps(spec))
        session.stdin.flush()
        pid = pid_in(tmp_path)
        session.stdin.write(b".")
        session.stdin.flush()
        assert session.stdout.readline() == b"stopped\n"
        session.kill()
    assert gone(pid)


def test_a_trial_that_is_forked_beside_it_takes_no_notice(runner, specs, tmp_path):
    forked = specs("both", TINY_TARGET)
    assert not runner.build_once(forked.target, forked.seed, str(tmp_path / "build.log"), SOON_S)
    runner.compile_beside(dataclasses.replace(forked, kind=TrialKind.COMPILE, log_path=str(tmp_path / "beside.log")))
    assert [run(runner, forked).outcome for _ in range(3)] == [Outcome.MEASURED] * 3
    assert runner.compiled_beside(SOON_S).outcome is Outcome.MEASURED
    runner.forget_build()


@pytest.fixture
def bench(tmp_path, monkeypatch, runner):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("advisor.experiment.measuring.budget._LONGEST_MEASURE_S", 0.1)  # warms up no longer
    plant(tmp_path / "recipes", "compiling", expensive=True)
    recipes = (str(tmp_path / "recipes"),)
    request = Request(TargetSpec("target.py", str(tmp_path), device="cpu"), budget_s=BUDGET_S, recipe_folders=recipes)
    journal, catalog = Journal.create(request), load_catalog(recipes)
    return Bench(request, runner, Budget(BUDGET_S, catalog=catalog), journal, emit=lambda event: None)


HOLDS_THE_MEMORY = """
held = os.path.join(os.path.dirname(__file__), "held")
if not os.path.exists(held):
    open(held, "w").write(str(os.getpid()))
    time.sleep(600)
if os.path.exists("/proc/" + open(held).read()):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
"""


def test_a_trial_that_had_too_little_memory_beside_it_is_run_without(bench, tmp_path):
    (tmp_path / "target.py").write_text(building(HOLDS_THE_MEMORY), encoding="utf-8")
    bench.repeats_help = False  # on a busy machine the trial would be measured again
    bench.compile_beside(LATER)
    appears(tmp_path / "held")
    result = bench.run(bench.spec("compiles", {}))
    assert result.measured, result
    assert bench.compiling is None


def test_what_failed_beside_the_trials_has_its_result(bench, tmp_path):
    note = "open(os.path.join(os.path.dirname(__file__), 'builds'), 'a').write('built ')"
    (tmp_path / "target.py").write_text(building(f"{note}; raise ValueError('not today')"), encoding="utf-8")
    bench.compile_beside(LATER)
    assert not bench.has_compiled_beside()
    began_s = bench.budget.spent_s
    result = bench.run(bench.spec("later", LATER))
    assert result.outcome is Outcome.FAILED
    assert "not today" in result.reason
    assert (tmp_path / "builds").read_text() == "built "
    assert bench.has_compiled_beside()
    assert bench.warming_up_s <= bench.budget.spent_s - began_s, "the wait for it counts once"


FILLS_A_CACHE = """
import os, time

def compile_once():
    cache = os.path.join(os.path.dirname(__file__), "cache")
    if not os.path.exists(cache):
        time.sleep(1.5)
        open(cache, "w").write("")
"""


@pytest.mark.timed
def test_what_was_compiled_beside_is_part_of_the_warm_up_that_is_told(bench, tmp_path):
    text = TINY_TARGET.replace("return 1.0 * x", "compile_once(); return 1.0 * x")
    (tmp_path / "target.py").write_text(f"{FILLS_A_CACHE}{text}", encoding="utf-8")
    bench.compile_beside(LATER)
    assert not bench.has_compiled_beside()
    spent_s = bench.warming_up_s
    result = bench.run(bench.spec("later", LATER))  # waits for it
    assert bench.has_compiled_beside()
    assert not bench.budget.has_to_compile(LATER)
    assert result.measured
    assert result.warmup_s > 1.4, "as long as it takes to compile"
    assert bench.warming_up_s - spent_s > 1.0, "as the session waited for it"
    assert bench.run(bench.spec("other", COMPILING)).warmup_s < 1.0
