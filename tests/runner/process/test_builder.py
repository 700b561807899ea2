"""Trials that are forked from a process which has built the target once: real processes throughout."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from planted import TINY_TARGET
from trial_processes import SOON_S, building, gone, run, spec_of

from advisor.records import Activity, Outcome, TrialKind
from advisor.runner.trial_process import Trial
from advisor.runner.trials import Runner
from advisor.trial import builder

pytestmark = pytest.mark.usefixtures("started_fork_server")
BUILDS = building("open(os.path.join(os.path.dirname(__file__), 'builds'), 'a').write(f'{os.getpid()}\\n')")


@pytest.fixture
def built(tmp_path):
    """Build a target's text once: the runner, what kept it from that, and a spec for its trials."""
    runners = []

    def build(text):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        spec, runner = spec_of(tmp_path, "target.py"), Runner()
        runners.append(runner)
        return runner, runner.build_once(spec.target, spec.seed, str(tmp_path / "build.log"), SOON_S), spec

    yield build
    for runner in runners:
        runner.forget_build()


def test_trials_are_forked_from_one_build_and_leave_it_as_it_was(built, tmp_path):
    runner, problem, spec = built(BUILDS)
    assert not problem
    forked = run(runner, spec)
    changed = run(runner, dataclasses.replace(spec, settings={"precision.autocast": "bfloat16"}))
    assert changed.measured
    assert changed.losses != forked.losses == run(runner, spec).losses
    assert len((tmp_path / "builds").read_text().split()) == 1
    assert run(Runner(), spec).losses == forked.losses  # it builds for itself


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "torch.distributed.init_process_group('gloo', init_method='tcp://localhost:0', rank=0, world_size=1)",
            "the target starts a process group, whose threads no fork has",
        ),
        ("raise ValueError('no data')", "no data"),
        ("os._exit(5)", "ended"),
    ],
)
def test_what_cannot_be_forked_is_built_by_each_trial(built, body, problem):
    runner, told, spec = built(building(body))
    assert problem in told
    assert run(runner, spec).measured is ("group" in body)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="building may use the GPU")
@pytest.mark.parametrize(
    "body", ["torch.cuda.is_available()", "torch.compile(nn.Linear(4, 2), backend='eager')(torch.ones(3, 4))"]
)
def test_without_a_gpu_building_never_uses_cuda_though_it_asks_for_it(built, body):
    runner, problem, spec = built(building(body))
    assert not problem
    assert run(runner, spec).measured


# A thread that waits in the C library, which knows nothing of Python.
NATIVE = """
libc = ctypes.CDLL(None, use_errno=True)
pipe = (ctypes.c_int * 2)()
libc.pipe(pipe)
room, thread = ctypes.create_string_buffer(8), ctypes.c_ulong()
build.kept = pipe, room
started = libc.pthread_create(
    ctypes.byref(thread), None, ctypes.cast({function}, ctypes.c_void_p), ctypes.c_void_p({argument})
)
assert started == 0
"""
IDLE = {
    "an executor that is shut down": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(2); pool.submit(time.sleep, 0.2); pool.shutdown(wait=False)"
    ),
    "a progress bar's": "import tqdm; list(tqdm.tqdm([1, 2]))",
    "not Python's": NATIVE.format(function="libc.pause", argument="None"),
    "PyTorch's for a number that the target sets": (
        "torch.set_num_threads(3); torch.ones(2**20).exp().sum(); torch.ones(300, 300) @ torch.ones(300, 300)"
    ),
    "a backward pass": "torch.ones(300, 300, requires_grad=True).exp().sum().backward()",
}


def test_idle_threads_are_no_hindrance_and_a_trial_has_those_that_the_target_asked_for(built, tmp_path):
    note = "open(os.path.join(os.path.dirname(__file__), 'threads'), 'w').write(str(torch.get_num_threads())); return"
    runner, problem, spec = built(building("\n".join(IDLE.values())).replace("return 1.0", f"{note} 1.0"))
    assert not problem
    assert run(runner, spec).measured
    assert (tmp_path / "threads").read_text() == "3"


HANDS_OVER = """
import queue, threading
batches = queue.Queue(maxsize=1)
def read():
    while True:
        batches.put(0)
threading.Thread(target=read, name="reader", daemon=True).start()
"""
COUNTS = """
import threading
threading.Thread(target=lambda: [0 for _ in iter(int, 1)], name="counter", daemon=True).start()
"""
COUNTS_UNKNOWN_TO_PYTHON = """
COUNT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
build.count = COUNT(lambda data: [None for _ in iter(int, 1)])
""" + NATIVE.format(function="build.count", argument="None")
POOL = """
import threading
for _ in range(2):
    threading.Thread(target=threading.Event().wait, name="worker", daemon=True).start()
"""
PROCESS = """
import multiprocessing
multiprocessing.Process(target=time.sleep, args=(60,), daemon=True, name="helper").start()
"""
REFUSED = {
    "a process": (PROCESS, "starts processes (helper)"),
    "at work, hands over, waits for work": (COUNTS + HANDS_OVER + POOL, "starts threads (2 x worker, counter, reader)"),
    "at work, not Python's": (COUNTS_UNKNOWN_TO_PYTHON, "starts threads ("),
}


@pytest.mark.parametrize(("body", "told"), REFUSED.values(), ids=REFUSED)
def test_what_forks_would_miss_is_refused_by_name(built, body, told):
    _, problem, _ = built(building(body))
    assert told in problem
    assert problem.endswith("start them with the first batch or the first step, not while building")


def test_a_trial_that_runs_in_turn_or_in_a_fresh_interpreter_builds_for_itself(built, tmp_path):
    runner, _, spec = built(BUILDS)
    with runner.open(dataclasses.replace(spec, kind=TrialKind.TURNS), lambda message: None) as trial:
        assert trial.wait_ready() is None
        trial.finish()
    assert run(runner, dataclasses.replace(spec, environment={"A_VARIABLE": "1"})).measured
    assert len((tmp_path / "builds").read_text().split()) == 3


def test_a_crash_and_a_time_out_of_a_fork_are_results_and_the_next_one_runs(built, tmp_path):
    crash = TINY_TARGET.replace("return 1.0 * x", "return 1.0 * x if not os.path.exists(FLAG) else act()")
    head = (
        "import os, signal, time\n"
        f"FLAG = {str(tmp_path / 'flag')!r}\n"
        "def act():\n    os.kill(os.getpid(), signal.SIGSEGV) if open(FLAG).read() == 'crash' else time.sleep(60)\n"
    )
    runner, problem, spec = built(head + crash)
    assert not problem
    (tmp_path / "flag").write_text("crash")
    crashed = run(runner, spec)
    assert (crashed.outcome, "SIGSEGV" in crashed.reason) == (Outcome.CRASHED, True)
    (tmp_path / "flag").write_text("hang")
    assert run(runner, dataclasses.replace(spec, timeout_s=2.0)).outcome is Outcome.TIMED_OUT
    (tmp_path / "flag").unlink()
    assert run(runner, spec).measured


IMPORTS_AND_STARTS = """
import sys, threading
with open(os.path.join(os.path.dirname(__file__), "seen"), "a") as file:
    file.write(f"{'iniconfig' in sys.modules} {os.environ.get('SET_FOR_IT')} {'of_the_user' in sys.modules}\\n")
os.environ["SET_FOR_IT"] = "yes"
import iniconfig, of_the_user
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""


def test_where_each_trial_builds_the_target_its_libraries_are_imported_once(built, tmp_path):
    (tmp_path / "of_the_user.py").touch()
    runner, problem, spec = built(building(IMPORTS_AND_STARTS))
    assert "starts threads" in problem
    assert run(runner, spec).measured
    building_once, trial = (tmp_path / "seen").read_text().splitlines()
    assert building_once == "False None False"
    assert trial == "True yes False"


def test_a_builder_that_died_is_done_without(built):
    runner, _, spec = built(TINY_TARGET)
    os.kill(runner._builder._process.pid, signal.SIGKILL)
    assert gone(runner._builder._process.pid)
    assert run(runner, spec).measured


def test_building_can_be_cancelled(tmp_path):
    (tmp_path / "target.py").write_text(building("time.sleep(60)"), encoding="utf-8")
    spec, runner = spec_of(tmp_path, "target.py"), Runner()
    threading.Timer(0.5, runner.cancel).start()
    started = time.monotonic()
    assert runner.build_once(spec.target, spec.seed, str(tmp_path / "build.log"), SOON_S)
    assert time.monotonic() - started < SOON_S / 2


def test_a_program_that_leaves_its_builder_alone_ends(tmp_path):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    code = (
        "from advisor.records import TargetSpec\nfrom advisor.runner.trials import Runner\nrunner = Runner()\n"
        f"problem = runner.build_once(TargetSpec('target.py:build', {str(tmp_path)!r}), 0, 'build.log', {SOON_S})\n"
        "print(problem or runner._builder._process.pid)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, timeout=2 * SOON_S, capture_output=True, text=True, check=True
    )
    assert gone(int(ran.stdout))


LEAVES_A_PROCESS = """
import os, signal, time

def act():
    if os.fork() == 0:  # as a DataLoader's worker is, with all that is open
        os.setsid()
        open(PIDS, "a").write(f"{os.getpid()} ")
        time.sleep(60)
        os._exit(0)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_death_of_a_trial_is_noticed_though_a_process_of_its_own_lives_on(built, tmp_path):
    pids = tmp_path / "pids"
    act = TINY_TARGET.replace("return 1.0 * x", "return act()")
    runner, problem, spec = built(f"PIDS = {str(pids)!r}\n{LEAVES_A_PROCESS}{act}")
    assert not problem
    started = time.monotonic()
    result = run(runner, spec)
    try:
        assert result.outcome is Outcome.OUT_OF_MEMORY, result
        assert time.monotonic() - started < SOON_S / 2
        again = time.monotonic()
        assert run(runner, spec).outcome is Outcome.OUT_OF_MEMORY  # it does not hold up the next one either
        assert time.monotonic() - again < SOON_S / 2
    finally:
        for pid in pids.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


NOTES = """
import os, sys, time
def note(what, found): open(os.path.join(os.path.dirname(__file__), what), "a").write(f"{found}\\n")
"""


def noting_in_trials(call):
    """A target that makes this call in each trial, when its model moves to the device."""
    moves = f"def _apply(self, change): {call}; return super()._apply(change)\n\n    def forward("
    return NOTES + TINY_TARGET.replace("def forward(", moves)


def test_the_compiler_is_imported_beside_the_first_trial_that_compiles(built, tmp_path):
    text = noting_in_trials(f"note('has it', {builder._COMPILER!r} in sys.modules)")
    runner, _, spec = built(f"{text}\ntorch.compile = lambda call, **options: call\n")  # it would compile for seconds
    for settings in ({}, *[{"compile.mode": "default"}] * 2):
        assert run(runner, dataclasses.replace(spec, settings=settings)).measured
    assert (tmp_path / "has it").read_text().split() == ["False", "False", "True"]


# The end of a trial takes a while, as where a GPU's memory is given back, and nobody hurries it.
LEAVES_SLOWLY = """
leave, os.killpg = os._exit, lambda *_: None
def leave_slowly(code): time.sleep(0.5); note("left", time.monotonic()); leave(code)
os._exit = leave_slowly
"""


def test_a_trial_starts_while_the_one_before_ends_and_takes_memory_after_it(built, tmp_path, monkeypatch):
    monkeypatch.setattr(Trial, "_kill_group", lambda trial: None)
    runner, problem, spec = built(noting_in_trials("note('moved', time.monotonic())") + LEAVES_SLOWLY)
    assert not problem
    begins, started = Activity("loading the model"), []
    for _ in range(3):
        assert runner.run(spec, lambda message: message == begins and started.append(time.monotonic())).measured
    moved, left = ([float(line) for line in (tmp_path / name).read_text().split()] for name in ("moved", "left"))
    for after in (1, 2):
        assert started[after] < left[after - 1] < moved[after]
