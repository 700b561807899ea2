"""The builder's own process, driven from a program: what it does while trials run and end."""

import forked
import pytest
from planted import TINY_TARGET

IMPORTS_THE_COMPILER = """
import os, sys
import torch
from advisor.trial import builder

torch.set_num_threads(1)
threads = len(builder.thread_ids())
assert builder._COMPILER not in sys.modules
assert builder._import_compiler()
assert builder._COMPILER in sys.modules
assert len(builder.thread_ids()) <= threads  # forking ends idle ones
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


SERVES = """
import multiprocessing, pathlib, sys, time
from multiprocessing.reduction import send_handle
from advisor.records import Finished, TargetSpec, TrialSpec
from advisor.trial import builder
from advisor.process.channel import Inbox

folder, useful = pathlib.Path(sys.argv[1]), sys.argv[2] == "useful"
fork = multiprocessing.get_context("fork")
builder._has_gpu, builder._has_cores = lambda target: True, lambda: True
def import_compiler():
    (folder / "imported").open("a").write("once")
    return useful
builder._import_compiler = import_compiler
target = TargetSpec("target.py", str(folder))  # on whatever there is
ours, theirs = fork.Pipe()
process = fork.Process(target=builder.builder_main, args=(target, 0, theirs, str(folder / "build.log")))
process.start()
theirs.close()
told = Inbox(ours)
assert not told.next(60).problem
for number in range(4 if useful else 3):
    assert (folder / "imported").exists() == (number == 3)
    mine, trials = fork.Pipe()
    spec = TrialSpec("t", target, {}, 0.1, 0.2, 60.0, str(folder / "trial.log"))
    ours.send((spec, time.monotonic()))
    send_handle(ours, trials.fileno(), process.pid)
    told.next(60)
    box = Inbox(mine)
    while not isinstance(message := box.next(60), Finished):
        pass
    assert message.result.measured, message.result
    assert told.next(60).exitcode == 0
if useful:
    process.kill()  # it holds our end as well, so it would wait for ever
process.join()
"""


@pytest.mark.parametrize("forks", ["useful", "no use"])
def test_what_is_imported_meanwhile_is_imported_once(tmp_path, forks):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    done = forked.run(SERVES, str(tmp_path), forks)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "imported").read_text() == "once"


LEAVES_SLOWLY = (
    "import os, time\n"
    "def note(what): open(os.path.join(os.path.dirname(__file__), what), 'a').write(f'{time.monotonic()}\\n')\n"
    "leave = os._exit\n"
    "def leave_slowly(code): time.sleep(1.0); note('left'); leave(code)\n"
    "os._exit = leave_slowly\n"
)

SERVES_AT_ONCE = """
import multiprocessing, sys, time
from multiprocessing.reduction import send_handle
from advisor.records import Finished, Forked, Started, TargetSpec, TrialSpec
from advisor.trial import builder
from advisor.process.channel import Inbox

folder = sys.argv[1]
fork = multiprocessing.get_context("fork")
ours, theirs = fork.Pipe()
target = TargetSpec("target.py", folder, device="cpu")
process = fork.Process(target=builder.builder_main, args=(target, 0, theirs, f"{folder}/build.log"))
process.start()
theirs.close()
told = Inbox(ours)
assert not told.next(60).problem
ends = []  # a trial whose parent is gone is killed
for number in range(3):
    mine, trials = fork.Pipe()
    ends.append(mine)
    spec = TrialSpec("t", target, {}, 0.1, 0.2, 60.0, f"{folder}/trial.log")
    ours.send((spec, time.monotonic()))
    send_handle(ours, trials.fileno(), process.pid)
    assert isinstance(told.next(60), Forked)  # of one before that is still ending, nothing is said
    box = Inbox(mine)
    while not isinstance(message := box.next(60), Finished):
        if isinstance(message, Started):
            print(time.monotonic())
    assert message.result.measured, message.result
assert told.next(60).exitcode == 0
process.kill()  # it holds our end as well, so it would wait for ever
process.join()
"""


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
    left = left[-3:]  # a fork of the builder's that tries CUDA leaves before the trials
    for after in (1, 2):
        assert started[after] < left[after - 1] < moved[after]


SERVES_AHEAD = """
import multiprocessing, os, pathlib, psutil, sys, time, torch
from multiprocessing.reduction import send_handle
from advisor.machine.device import Cuda
from advisor.records import Finished, ForkAhead, TargetSpec, TrialSpec
from advisor.trial import builder
from advisor.process.channel import Inbox

folder = pathlib.Path(sys.argv[1])
started = folder / "started"
fork = multiprocessing.get_context("fork")
builder._has_gpu, builder._has_cores = lambda target: True, lambda: True
builder._import_compiler = lambda: True
torch.cuda._is_in_bad_fork = lambda: False  # without NVML, asking for a GPU spoils forks, and there is none

def start_driver():
    started.open("a").write(f"{os.getpid()}\\n")
    time.sleep(0.5)  # the spec comes meanwhile

Cuda.start_driver = staticmethod(start_driver)
ours, theirs = fork.Pipe()
target = TargetSpec("target.py", str(folder))  # on whatever there is

def build():
    ours.close()
    builder.builder_main(target, 0, theirs, f"{folder}/build.log")

def ahead(number):
    for _ in range(600):
        pids = started.read_text().split() if started.exists() else []
        if len(pids) == number:
            return int(pids[-1])
        time.sleep(0.1)
    raise TimeoutError(f"{len(pids)} forks ahead, not {number}")

def trial():
    mine, trials = fork.Pipe()
    spec = TrialSpec("t", target, {}, 0.1, 0.2, 60.0, f"{folder}/trial.log")
    ours.send((spec, time.monotonic()))
    send_handle(ours, trials.fileno(), process.pid)
    pid, box = told.next(60).pid, Inbox(mine)
    while not isinstance(message := box.next(60), Finished):
        assert message is not None
    assert message.result.measured, message.result
    assert told.next(60).exitcode == 0
    return pid

process = fork.Process(target=build)
process.start()
theirs.close()
try:
    told = Inbox(ours)
    assert not told.next(60).problem
    assert ahead(1) == trial()  # forked after building
    ours.send(ForkAhead())
    ours.send(ForkAhead())  # one is enough
    assert ahead(2) == trial()
    ours.send(ForkAhead())
    waiting = psutil.Process(ahead(3))
    waiting.kill()
    while waiting.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert waiting.pid != trial()  # it died while it waited
    ours.send(ForkAhead())
    waiting = psutil.Process(ahead(4))
    ours.close()
    process.join(30)
    assert process.exitcode == 0, process.exitcode
    assert waiting not in psutil.process_iter()
finally:
    process.kill()
"""


def test_a_fork_ahead_of_its_spec_runs_the_next_trial_or_ends_with_the_builder(tmp_path):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    done = forked.run(SERVES_AHEAD, str(tmp_path))
    assert done.returncode == 0, done.stderr


SHOWS = """
import os, torch
from advisor.trial.builder import leaving_cuda_alone

# On a machine with a GPU these start the driver.
torch._C._show_config = lambda: str(os.getpid())
torch.cuda.get_device_capability = lambda device=None: (os.getpid(), device)
torch.cuda.is_current_stream_capturing = lambda: 1 / 0
with leaving_cuda_alone():
    assert torch.cuda.is_current_stream_capturing() is False
    first, again = torch.__config__.show(), torch.__config__.show()
    number, device = torch.cuda.get_device_capability(device=1)
assert first == again != str(os.getpid()), (first, again)
assert number != os.getpid() and device == 1, number
assert torch.__config__.show() == str(os.getpid())
"""


def test_what_libraries_ask_about_cuda_asks_no_driver_in_the_builder():
    done = forked.run(SHOWS)
    assert done.returncode == 0, done.stderr
