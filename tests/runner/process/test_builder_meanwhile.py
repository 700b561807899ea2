"""The builder's own process, driven from a program: what it does while trials run and end."""

import forked
from planted import TINY_TARGET

IMPORTS_THE_COMPILER = """
import importlib, os, sys
import torch
from advisor.trial import builder

torch.set_num_threads(1)
threads = builder._thread_ids()
assert builder._COMPILER not in sys.modules
importlib.import_module(builder._COMPILER)
assert builder._COMPILER in sys.modules
assert not builder._started_threads(threads)
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    result = torch.compile(lambda x: 2 * x + 1)(torch.ones(4))
    os._exit(0 if result.tolist() == [3.0] * 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_of_a_process_that_has_imported_the_compiler_can_compile(tmp_path):
    done = forked.Program(IMPORTS_THE_COMPILER, environment={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}).ended()
    assert done.returncode == 0, done.stderr


# The builder's process, and what starts trials in it.
BUILDER = """
import multiprocessing, pathlib, sys, time, torch, types
from multiprocessing.reduction import send_handle
from advisor.process.channel import receive_message
from advisor.records import Activity, TargetSpec, TrialResult, TrialSpec
from advisor.trial import builder

folder = pathlib.Path(sys.argv[1])
fork = multiprocessing.get_context("fork")
ours, theirs = fork.Pipe()

def begin(target):
    process = fork.Process(target=builder.builder_main, args=(target, 0, theirs, str(folder / "build.log")))
    process.start()
    theirs.close()
    assert not receive_message(ours, 60).problem
    return process

def start(process, target, after=0):
    mine, trials = fork.Pipe()
    spec = TrialSpec("t", target, {}, 0.1, 0.2, 60.0, str(folder / "trial.log"))
    ours.send((spec, time.monotonic(), after))
    send_handle(ours, trials.fileno(), process.pid)
    return mine, receive_message(ours, 60).pid

def finish(mine, listen=lambda message: None):
    while not isinstance(message := receive_message(mine, 60), TrialResult):
        listen(message)
    assert message.measured, message
"""
SERVES = (
    BUILDER
    + """
torch.cuda.device_count, builder.usable_cores = lambda: 1, lambda: builder._FEWEST_CORES
builder.importlib = types.SimpleNamespace(import_module=lambda name: (folder / "imported").open("a").write("once"))
target = TargetSpec("target.py", str(folder))  # on whatever there is
process = begin(target)
for number in range(4):
    assert (folder / "imported").exists() == (number >= 3)
    mine, pid = start(process, target)
    finish(mine)
    ended = receive_message(ours, 60)
    assert (ended.pid, ended.exitcode) == (pid, 0)
process.kill()  # it holds our end as well, so it would wait for ever
process.join()
"""
)


def test_the_compiler_is_imported_once_beside_a_trial(tmp_path):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    done = forked.run(SERVES, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "imported").read_text() == "once"


LEAVES_SLOWLY = (
    "import os, time\n"
    "def note(what): open(os.path.join(os.path.dirname(__file__), what), 'a').write(f'{time.monotonic()}\\n')\n"
    "leave = os._exit\n"
    "def leave_slowly(code): time.sleep(0.5); note('left'); leave(code)\n"
    "os._exit = leave_slowly\n"
)

SERVES_AT_ONCE = (
    BUILDER
    + """
target = TargetSpec("target.py", str(folder), device="cpu")
process = begin(target)
ends, last = [], 0  # a trial whose parent is gone is killed
for number in range(3):
    mine, pid = start(process, target, last)
    ends.append(mine)
    before, last = last, pid
    finish(mine, lambda message: message == Activity("loading the model") and print(time.monotonic()))
    assert not before or receive_message(ours, 60).pid == before
assert receive_message(ours, 60).exitcode == 0
process.kill()  # it holds our end as well, so it would wait for ever
process.join()
"""
)


def test_a_trial_starts_while_the_one_before_ends_and_takes_memory_after_it(tmp_path):
    moves = TINY_TARGET.replace(
        "    def forward(",
        "    def _apply(self, change): note('moved'); return super()._apply(change)\n    def forward(",
        1,
    )
    assert moves != TINY_TARGET
    (tmp_path / "target.py").write_text(LEAVES_SLOWLY + moves, encoding="utf-8")
    done = forked.run(SERVES_AT_ONCE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    started = [float(line) for line in done.stdout.split()]
    moved, left = ([float(line) for line in (tmp_path / name).read_text().split()] for name in ("moved", "left"))
    for after in (1, 2):
        assert started[after] < left[after - 1] < moved[after]
