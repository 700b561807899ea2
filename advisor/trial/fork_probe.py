"""A fork that is tried before trials are forked: runs a trial's steps on the CPU, and reports failures.

What threads of the parent hold at the fork, and what a library makes of a fork, cannot be looked up; it can be tried.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import RefusedError
from advisor.process.household import kill, lead_own_group
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.loader import rebuild
from advisor.step.step import make_step
from advisor.target.loop import Loop
from advisor.target.resizing import resize_batch
from advisor.trial.forked_files import read_independently
from advisor.trial.measurement.draws import first_batches

# A fork that neither computes nor reads for this long is taken to hang. Seconds.
_QUIET_S = 1.0
# Longest time of the parts that are the same in all programs. Seconds; 0.1 to 0.3 were measured on two cores.
_LIMIT_S = 3.0
# The workload's own parts pass once they have computed for this. Seconds; a GPU's step may take minutes on the CPU.
_LARGE_PART_S = 0.5
_LOOK_EVERY_S = 0.05
_STEPS = 2
_SAMPLES = 2
# Sizes from which PyTorch spreads a product and an elementwise operation over its threads.
_MATRIX = 256
_ELEMENTS = 2**17
_STEP = "a step"
_WORKLOADS = ("the first batches", _STEP)
_WAITING = (psutil.STATUS_SLEEPING, psutil.STATUS_IDLE)
_ABOUT_FORKS = re.compile(r"\bfork", re.IGNORECASE)

_Part = tuple[str, Callable[[], None]]


def problem_of_forks(loop: Loop, threads: int) -> str:
    """Run a trial's steps in a fork with this number of threads; return the problem, empty for none.

    A fork that is quiet for a second hangs, and is killed. A step that has computed for half a second has passed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_leave(loop, threads, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    try:
        return _watch(child, reading)
    finally:
        os.close(reading)


# --- the fork -------------------------------------------------------------------------------------------------


def _run_and_leave(loop: Loop, threads: int, writing: int) -> None:
    """Run the parts; report each before it starts, and an exception. Never returns."""
    try:
        lead_own_group()
        read_independently()
        for name, part in _parts(loop, threads):
            os.write(writing, f"{name}\n".encode())
            failure = _failure_of(part)
            if failure and (name not in _WORKLOADS or _ABOUT_FORKS.search(failure)):
                os.write(writing, f"!{failure}\n".encode())
                os._exit(1)
    finally:
        os._exit(0)


def _failure_of(part: Callable[[], None]) -> str:
    try:
        part()
    except BaseException as error:  # user code may raise anything, and the fork must not return into the builder
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _parts(loop: Loop, threads: int) -> Iterable[_Part]:
    """The parts of a trial. A trial reports errors of the workload's own parts, unless forking causes them."""
    batches: list[object] = []
    return (
        ("a product on several threads", lambda: _compute(threads)),
        ("a backward pass", _backward),
        ("a DataLoader's worker", _start_worker),
        (_WORKLOADS[0], lambda: batches.extend(_first_batches(loop))),
        (_STEP, lambda: _run_steps(loop, batches)),
    )


def _compute(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.ones(_MATRIX, _MATRIX) @ torch.ones(_MATRIX, _MATRIX)
    torch.ones(_ELEMENTS).exp().sum().item()


def _backward() -> None:
    weight = torch.ones(_MATRIX, _MATRIX, requires_grad=True)
    (weight @ weight).sum().backward()


def _start_worker() -> None:
    for _ in DataLoader(TensorDataset(torch.ones(2)), num_workers=1):
        pass


def _first_batches(loop: Loop) -> list[object]:
    if loop.loader is None:
        return [loop.data] * _STEPS
    try:
        loader = rebuild(loop.loader, batch_size=_SAMPLES)
    except RefusedError:  # it does not form its batches itself
        loader = loop.loader
    return first_batches(loader, 0, _STEPS)


def _run_steps(loop: Loop, batches: list[object]) -> None:
    loop.model.train(loop.mode is Mode.TRAIN)
    plan = StepPlan(mode=loop.mode, device="cpu")
    step = make_step(loop.components(plan, loop.data), loop.loss)
    for batch in batches:
        step(_shortened(batch))


def _shortened(batch: object) -> object:
    """A few samples of a batch: the probe runs on the CPU, where a whole batch may take too much memory and time."""
    try:
        return resize_batch(batch, _SAMPLES)
    except Exception:  # graphs and other batches that are no stack of samples
        return batch


# --- its parent -----------------------------------------------------------------------------------------------


def _watch(child: int, reading: int) -> str:
    told, activity = b"", _Activity(child)
    name, since, until = "", 0.0, time.monotonic() + _LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        told += _read(reading)
        before, (name, failure), now = name, _last_told(told), time.monotonic()
        since = since if name == before else now
        if ended:
            return _problem_of_end(name, failure, os.waitstatus_to_exitcode(status))
        quiet_s = activity.quiet_s()
        if quiet_s > _QUIET_S:
            _kill(child)
            return f"hangs in {name}"
        if name in _WORKLOADS and now - since > _LARGE_PART_S and quiet_s < _LARGE_PART_S / 2:
            _kill(child)
            return ""
        if now > until and name not in _WORKLOADS:
            _kill(child)
            return f"does not get beyond {name} within {_LIMIT_S:.0f} s"
        time.sleep(_LOOK_EVERY_S)


def _last_told(told: bytes) -> tuple[str, str]:
    """The part that was started last, and its exception, if any."""
    lines = told.decode(errors="replace").splitlines()
    names = [line for line in lines if not line.startswith("!")]
    failures = [line.removeprefix("!") for line in lines if line.startswith("!")]
    return names[-1] if names else "its first instructions", failures[-1] if failures else ""


def _problem_of_end(name: str, failure: str, exit_code: int) -> str:
    if failure:
        return f"fails in {name}: {failure}"
    return f"dies in {name} ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""


class _Activity:
    """Whether a process and its children compute or read."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._computed_s = -1.0
        self._since = time.monotonic()

    def quiet_s(self) -> float:
        """The seconds for which none of them has done anything, as far as looks at them tell."""
        now = time.monotonic()
        with contextlib.suppress(psutil.Error):
            processes = [self._process, *self._process.children(recursive=True)]
            computed_s = sum(sum(process.cpu_times()[:2]) for process in processes)
            if computed_s != self._computed_s or any(p.status() not in _WAITING for p in processes):
                self._computed_s, self._since = computed_s, now
        return now - self._since


def _read(reading: int) -> bytes:
    try:
        return os.read(reading, 65536)
    except BlockingIOError:
        return b""


def _kill(child: int) -> None:
    kill(child, group=True)
    kill(child)  # it may not lead its group yet
    os.waitpid(child, 0)
