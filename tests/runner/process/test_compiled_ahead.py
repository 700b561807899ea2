"""What is compiled beside a trial that compiles: real processes throughout."""

import dataclasses
import threading
import time

import psutil
import pytest
from planted import TINY_TARGET, plant
from trial_processes import SOON_S, building, gone, spec_of

from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.recipe.catalog import load_catalog
from advisor.records import Activity, Compiled, Outcome, TargetSpec, TrialKind
from advisor.runner.trials import Runner

NOTES_ITS_PROCESS = "open(os.path.join(os.path.dirname(__file__), {!r}), 'a').write(f'{{os.getpid()}}\\n')"

pytestmark = pytest.mark.usefixtures("real_sessions")
BUDGET_S = 200.0
COMPILING = {"planted.compiling": True}
LATER = {**COMPILING, "control.noop": True}


# A trial is built as long as the other has not begun, or not ended.
BEGUN = """
note = os.path.join(os.path.dirname(__file__), "pid")
while not (os.path.exists(note) and os.path.getsize(note)):
    time.sleep(0.02)
"""
ENDED = f"""{BEGUN}
while os.path.exists("/proc/" + open(note).read().strip()):
    time.sleep(0.02)
"""


@pytest.fixture
def specs(tmp_path):
    """Make the spec of a target's text; each has a file of its own."""

    def make(name, text, **changes):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        spec = dataclasses.replace(spec_of(tmp_path, f"{name}.py"), log_path=str(tmp_path / "logs" / f"{name}.log"))
        return dataclasses.replace(spec, trial_id=name, **changes)

    return make


def test_what_is_only_compiled_has_first_steps_and_no_timings(specs):
    result = Runner().run(specs("tiny", TINY_TARGET, kind=TrialKind.AHEAD), lambda message: None)
    assert (result.outcome, result.blocks) == (Outcome.MEASURED, ())
    assert result.warmup_s > 0
    assert not result.measured


def test_a_trial_that_pauses_times_nothing_before_it_is_told_to_go_on(specs):
    messages = []
    with Runner().open(specs("tiny", TINY_TARGET, kind=TrialKind.PAUSING), messages.append) as trial:
        assert trial.wait_compiled() is None
        assert isinstance(messages[-1], Compiled)
        time.sleep(0.5)
        assert not trial._connection.poll()
        result = trial.go_on()
    assert result.measured
    said = [message.text for message in messages if isinstance(message, Activity)]
    assert said[-2:] == ["warming up", "measuring"]


def test_what_is_compiled_beside_a_trial_has_ended_before_that_is_timed(specs, tmp_path):
    trial = specs("trial", building(BEGUN))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid") + "; time.sleep(600)"), kind=TrialKind.AHEAD)
    beside = []

    def listen(message):
        if message == Activity("warming up"):
            beside.append(psutil.pid_exists(int((tmp_path / "pid").read_text())))

    result, early = Runner().run_compiling_ahead(trial, ahead, listen)
    assert result.measured
    assert early is None
    assert beside == [False]


def test_both_run_at_the_same_time(specs, tmp_path):
    trial = specs("trial", building(ENDED))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid")), kind=TrialKind.AHEAD)
    seen = []

    def listen(message):
        if isinstance(message, Compiled):
            seen.append((tmp_path / "pid").exists())

    result, early = Runner().run_compiling_ahead(trial, ahead, listen)
    assert result.measured
    assert (early.outcome, early.blocks) == (Outcome.MEASURED, ())
    assert seen == [True]
    assert "Error" not in (tmp_path / "logs" / "ahead.log").read_text()


def test_a_failure_of_what_is_compiled_ahead_is_nobodys(specs):
    ahead = specs(
        "ahead", building(f"{NOTES_ITS_PROCESS.format('pid')}; raise ValueError('not today')"), kind=TrialKind.AHEAD
    )
    trial = specs("trial", building(ENDED))
    result, early = Runner().run_compiling_ahead(trial, ahead, lambda message: None)
    assert result.measured
    assert (early.outcome, early.warmup_s) == (Outcome.FAILED, None)


def test_a_trial_in_company_that_fails_is_told_at_once(specs, tmp_path):
    trial = specs("trial", building(f"{BEGUN}os._exit(5)"))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid") + "; time.sleep(600)"), kind=TrialKind.AHEAD)
    result, _ = Runner().run_compiling_ahead(trial, ahead, lambda message: None)
    assert result.outcome is Outcome.CRASHED
    assert gone(int((tmp_path / "pid").read_text()))


def test_cancelling_ends_both(specs, tmp_path):
    sleeps = NOTES_ITS_PROCESS.format("pids") + "; time.sleep(600)"
    runner = Runner()

    def cancel_when_both_run():
        until = time.monotonic() + SOON_S
        while time.monotonic() < until and _pids(tmp_path) < 2:
            time.sleep(0.1)
        runner.cancel()

    threading.Thread(target=cancel_when_both_run).start()
    trial, ahead = specs("trial", building(sleeps)), specs("ahead", building(sleeps), kind=TrialKind.AHEAD)
    assert runner.run_compiling_ahead(trial, ahead, lambda message: None)[0].outcome is Outcome.CANCELLED
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def _pids(folder):
    return len((folder / "pids").read_text().split()) if (folder / "pids").exists() else 0


NOT_ENOUGH_FOR_TWO = """
if os.path.exists(os.path.join(os.path.dirname(__file__), 'first')):
    open(os.path.join(os.path.dirname(__file__), 'second'), 'w').write('')
else:
    open(os.path.join(os.path.dirname(__file__), 'first'), 'w').write('')
    while not os.path.exists(os.path.join(os.path.dirname(__file__), 'second')): time.sleep(0.05)
    raise torch.cuda.OutOfMemoryError('CUDA out of memory')
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("advisor.experiment.measuring.budget._LONGEST_MEASURE_S", 0.1)  # warms up no longer
    plant(tmp_path / "recipes", "compiling", expensive=True)
    recipes = (str(tmp_path / "recipes"),)
    request = Request(TargetSpec("target.py", str(tmp_path), device="cpu"), budget_s=BUDGET_S, recipe_folders=recipes)
    journal, catalog = Journal.create(request), load_catalog(recipes)
    return Bench(request, Runner(), Budget(BUDGET_S), journal, emit=lambda event: None, catalog=catalog)


def test_a_trial_that_had_too_little_memory_in_company_is_run_without(bench, tmp_path):
    (tmp_path / "target.py").write_text(building(NOT_ENOUGH_FOR_TWO), encoding="utf-8")
    bench.budget.repeated_s = bench.budget.total_s  # on a busy machine the trial would be measured again
    result = bench.run(bench.spec("compiles", COMPILING), ahead=LATER)
    assert result.measured, result
    assert (tmp_path / "second").exists()
    assert bench.budget.compile_s == result.wall_s, "a compilation takes what the second took"


FILLS_A_CACHE = """
import os, time

def compile_once():
    cache, begun = (os.path.join(os.path.dirname(__file__), name) for name in ("cache", "begun"))
    if not os.path.exists(cache):
        seconds = SECOND_S if os.path.exists(begun) else 1.5
        open(begun, "w").write("")
        time.sleep(seconds)
        open(cache, "w").write("")
"""


@pytest.mark.timed
@pytest.mark.parametrize("second_s", [1.5, 4.0], ids=["ready", "cut off"])
def test_what_was_compiled_ahead_is_part_of_the_warm_up_that_is_told(bench, tmp_path, second_s):
    text = TINY_TARGET.replace("return 1.0 * x", "compile_once(); return 1.0 * x")
    (tmp_path / "target.py").write_text(f"SECOND_S = {second_s}\n{FILLS_A_CACHE}{text}", encoding="utf-8")
    first = bench.run(bench.spec("first", COMPILING), ahead=LATER)
    spent_s = bench.warming_up_s
    second = bench.run(bench.spec("second", LATER))
    assert first.measured
    assert second.measured
    assert second.warmup_s > 1.4, "as long as it takes to compile"
    assert bench.warming_up_s - spent_s < 1.0, "which it took no more"
    assert bench.run(bench.spec("third", COMPILING)).warmup_s < 1.0


SLEEPS_IN_ITS_FIRST_LOSS = """
import time
calls = []

def loss_of(output, target):
    calls.append(1)
    time.sleep(0.4 if len(calls) == 1 else 0.0)
    if len(calls) > FEWEST:
        raise RuntimeError("no more")
    return nn.functional.cross_entropy(output, target)
"""


@pytest.mark.parametrize(
    ("fewest", "settings", "measured"), [(10**9, {"precision.autocast": "bfloat16"}, True), (2, {}, False)]
)
def test_all_since_the_first_forward_pass_counts_as_warming_up(bench, tmp_path, fewest, settings, measured):
    text = TINY_TARGET.replace("def build():", f"FEWEST = {fewest}\n{SLEEPS_IN_ITS_FIRST_LOSS}\ndef build():")
    (tmp_path / "target.py").write_text(text.replace("nn.CrossEntropyLoss()", "loss_of"), encoding="utf-8")
    result = bench.run(bench.spec("one", settings))
    assert result.measured is measured, result
    assert bench.warming_up_s > 0.35, "the try of a loss under autocast, and first steps that failed"
    assert bench.time_spent().outside_s >= 0
