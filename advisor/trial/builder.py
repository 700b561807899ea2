"""A process that builds the workload once and forks the trials from it, where that is safe.

Building can cost more than measuring: weights are drawn or read, datasets are opened. A fork is as good as a new build
while the process has not touched CUDA, and no thread is at work in it or needed by a fork. Threads that are idle,
such as a memory allocator's, are no hindrance where a fork that is tried first does all that a trial does. Where
forks are no use, the builder says why. Then a second one imports the libraries that the target needed, and no more:
each trial, forked from that, builds anew.
"""

import ast
import contextlib
import functools
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from advisor.machine.device import Cuda
from advisor.machine.host import usable_cores
from advisor.process.channel import out_of_reach, send_message
from advisor.process.household import lead_own_group
from advisor.process.meanwhile import environment, replaced
from advisor.process.streams import redirect_output
from advisor.process.threads import StartedThread, started_since, thread_ids
from advisor.records import BuilderReady, TargetSpec
from advisor.target.entrypoint import load_target, one_line
from advisor.target.loop import Loop
from advisor.trial.fork_probe import problem_of_forks
from advisor.trial.forks import Fork, Forks, serve
from advisor.trial.measurement.draws import seed_all

# With this, asking whether there is a GPU asks NVML and leaves CUDA alone (PyTorch's documentation, "CUDA semantics").
_ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_UNUSABLE = 3
# Folders of installed packages and of Python itself, as parts of a path.
_PACKAGES = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
_DRIVER = "libcuda.so"
# Questions about a GPU whose answers are numbers and words; PyTorch starts CUDA for each.
_FACTS = ("current_device", "get_device_name", "get_device_capability", "is_bf16_supported", "mem_get_info")
# Starting CUDA in a fork takes 0.3 to 1 s; on a machine of several GPUs up to some seconds.
_CUDA_START_S = 20.0
_THREADS_SHOWN = 3
_HINT = "start them with the first batch or the first step, not while building"
# The modules that the first torch.compile imports. Importing them took 2.5 s of each compiling trial on an H200's host.
_COMPILER = "torch._inductor.compile_fx"
_FEWEST_CORES = 4
_LOOK_EVERY_S = 0.02


def builder_main(
    target: TargetSpec, seed: int, connection: Connection, log_path: str, imports: Sequence[str] = ()
) -> None:
    """Build the target, say whether trials can be forked from it, and fork one for each spec that comes.

    With ``imports`` these modules are imported instead, and each trial builds the target.
    """
    lead_own_group()
    multiprocessing.set_start_method(None, force=True)
    redirect_output(log_path)
    connection = out_of_reach(connection)
    threads = _Threads(torch.get_num_threads())
    loop: Loop | None = None
    ahead: Fork | None = None
    known = set(sys.modules)
    try:
        if imports:
            problem = import_libraries(imports, threads.wanted)
        else:
            loop = _build(target, seed, threads)
            problem = _problem_of_processes()
        if not problem:
            _spare_forks_the_garbage()
            can_use_cuda = functools.partial(_can_use_cuda, is_wanted=_has_gpu(target))
            forks = Forks(connection, loop, threads.wanted, can_use_cuda, go_ahead=_has_gpu(target) and _has_cores())
        if loop is not None and not problem:
            ahead = forks.first()  # it ends those idle threads that their library starts again when needed
            problem = _problem_of_threads(loop, threads)
            problem = _problem_of_cuda(ahead) or problem  # CUDA has threads of its own
    except BaseException as error:  # the trials will meet and report it
        problem = one_line(error)
    imported = _installed(sys.modules.keys() - known) if problem and loop is not None else ()
    send_message(connection, BuilderReady(problem, imported))
    if not problem:
        serve(forks, ahead, meanwhile=_import_compiler if forks.go_ahead else None)
    elif ahead is not None:
        ahead.dismiss()


@dataclass(slots=True)
class _Threads:
    """PyTorch's ``wanted`` number of threads in a trial: the usual one, or what the target asked for.

    ``before`` are the threads that were there before building.
    """

    wanted: int
    before: frozenset[int] = frozenset()

    def want(self, nthreads: int) -> None:
        """Note the number that the target asks for, in place of ``torch.set_num_threads``, while it is built."""
        self.wanted = int(nthreads)


@contextlib.contextmanager
def _one_thread(threads: _Threads) -> Iterator[None]:
    """Let PyTorch compute with one thread, even if the target asks for more: its trials get the number asked for.

    Its pool of threads does not survive a fork, and GNU's OpenMP waits for it there for ever; with one thread none is
    made.
    """
    torch.set_num_threads(1)
    with replaced(torch, "set_num_threads", threads.want):
        yield


def _build(target: TargetSpec, seed: int, threads: _Threads) -> Loop:
    with leaving_cuda_alone():
        if target.device != "cpu":
            torch.cuda.is_available()  # what NVML starts when it is asked for the first time is not the target's
        threads.before = thread_ids()
        seed_all(seed)
        with _one_thread(threads):
            return load_target(target)


def import_libraries(names: Sequence[str], threads: int) -> str:
    """Import modules; return the reason against forking this process afterwards. ``threads``: those of PyTorch."""
    with leaving_cuda_alone():
        torch.cuda.is_available()  # what NVML starts when it is asked for the first time is not the libraries'
        before = thread_ids()
        with _one_thread(_Threads(threads)):
            for name in names:
                with contextlib.suppress(Exception):  # what a trial needs it imports, and reports
                    importlib.import_module(name)
    if _forks_cannot_use_cuda():
        return "importing these libraries uses CUDA"
    return "importing these libraries starts threads" if started_since(before) else ""


def _installed(names: Iterable[str]) -> tuple[str, ...]:
    """The modules among these that belong to an installed package, in the order in which they were imported."""
    wanted = set(names)
    loaded = list(sys.modules.items())  # asking a lazy module for its file may import others
    return tuple(name for name, one in loaded if name in wanted and one is not None and _is_of_package(one))


def _is_of_package(module: ModuleType) -> bool:
    """Whether a module belongs to an installed package or to Python, and not to the user."""
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return not place or any(folder in str(place) for folder in _PACKAGES)


def _problem_of_processes() -> str:
    """The reason not to fork this process after building, if it has started processes; else empty."""
    processes = multiprocessing.active_children()
    return f"building the model starts processes ({processes[0].name}): {_HINT}" if processes else ""


def _problem_of_threads(loop: Loop, threads: _Threads) -> str:
    """The reason not to fork it, if threads are at work, or threads are idle and a fork that is tried fails."""
    started = started_since(threads.before)
    if busy := [thread for thread in started if not thread.idle]:
        return f"building the model starts threads that are at work ({_listed(busy)}): {_HINT}"
    problem = problem_of_forks(loop, threads.wanted) if started else ""
    return f"building the model starts threads ({_listed(started)}), and a fork {problem}: {_HINT}" if problem else ""


def _problem_of_cuda(fork: Fork) -> str:
    """The reason not to fork it, if a fork that has tried CUDA could not use it."""
    if fork.can_use_cuda(_CUDA_START_S) or not torch.cuda.device_count():
        return ""
    return "building the model, or a library that it imports, uses CUDA: leave the model on the CPU"


def _listed(threads: Sequence[StartedThread]) -> str:
    """Each kind of thread once, with how many of it there are."""
    counts = Counter(str(thread) for thread in threads)
    shown = [name if count == 1 else f"{count} x {name}" for name, count in counts.most_common(_THREADS_SHOWN)]
    return ", ".join(shown) + (" and others" if len(counts) > _THREADS_SHOWN else "")


def _asking_nvml() -> contextlib.AbstractContextManager[None]:
    """Have PyTorch ask NVML, instead of CUDA, for the GPUs meanwhile."""
    return environment({_ASK_NVML: "1"})


@contextlib.contextmanager
def leaving_cuda_alone() -> Iterator[None]:
    """Answer meanwhile what is asked about CUDA without starting its driver, which forks could not use then.

    A fork reads PyTorch's configuration, which torch_geometric wants while it is imported, and the facts of a GPU that
    programs choose a precision by. A forward pass of transformers asks whether the stream captures: none does yet.
    """
    capturing = torch.cuda.is_current_stream_capturing

    def captures() -> bool:
        return torch.cuda.is_initialized() and capturing()

    with contextlib.ExitStack() as stack:
        stack.enter_context(_asking_nvml())
        stack.enter_context(replaced(torch.cuda, "is_current_stream_capturing", captures))
        stack.enter_context(replaced(torch.__config__, "show", _answered_by_a_fork(torch.__config__.show)))
        for name in _FACTS:
            stack.enter_context(replaced(torch.cuda, name, _answered_by_a_fork(getattr(torch.cuda, name))))
        yield


def _answered_by_a_fork(ask: Callable[..., Any]) -> Callable[..., Any]:
    """The same question, asked in a fork as long as this process has not started CUDA; its answer is a literal."""

    @functools.cache
    def told(*args: Any, **kwargs: Any) -> str:
        return _text_of_a_fork(lambda: repr(ask(*args, **kwargs)))

    def answer(*args: Any, **kwargs: Any) -> Any:
        text = "" if torch.cuda.is_initialized() else told(*args, **kwargs)
        return ast.literal_eval(text) if text else ask(*args, **kwargs)

    return answer


def _text_of_a_fork(tell: Callable[[], str]) -> str:
    """The text that a function returns in a fork of this process; empty where that fails, or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, tell().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as told:
        _exit_code_of(child)
        return told.read()


def _forks_cannot_use_cuda() -> bool:
    """Whether something has asked the CUDA driver in a way that spoils it for forks; a fork tells.

    Where NVML is missing, whoever asks for a GPU asks CUDA in that way, and finds none: then forks lose nothing by it.
    """
    child = os.fork()
    if child == 0:
        os._exit(0 if _can_use_cuda() else _UNUSABLE)
    return _exit_code_of(child) != 0 and torch.cuda.device_count() > 0


def _can_use_cuda(*, is_wanted: bool = False) -> bool:
    """Whether this fork can use CUDA; it has started the driver then if that is wanted.

    PyTorch knows what it asked itself. Where the driver's library is loaded, another library may have started it too:
    then it is started here as well, which fails.
    """
    if torch.cuda._is_in_bad_fork():
        return False
    if not is_wanted and not _driver_is_loaded():
        return True
    try:
        Cuda.start_driver()
    except Exception:  # whatever a driver or PyTorch makes of it
        return False
    return True


def _driver_is_loaded() -> bool:
    with contextlib.suppress(OSError):
        return _DRIVER in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return False


def _exit_code_of(child: int) -> int:
    """The exit code of a fork, which is killed when it takes too long."""
    until = time.monotonic() + _CUDA_START_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK_EVERY_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return _UNUSABLE


def _has_gpu(target: TargetSpec) -> bool:
    return target.device != "cpu" and torch.cuda.device_count() > 0


def _has_cores() -> bool:
    """Whether cores are idle beside a trial. A trial on a GPU uses one or two."""
    return usable_cores() >= _FEWEST_CORES


def _import_compiler() -> bool:
    """Import the compiler, which each trial that compiles would import; its workers start with the first compilation.

    Returns whether forks can still use CUDA: the compiler asks for GPUs in many places while it is imported.
    """
    with _asking_nvml(), contextlib.suppress(Exception):  # the trial that compiles meets and reports it
        importlib.import_module(_COMPILER)
    _spare_forks_the_garbage()
    return not _forks_cannot_use_cuda()


def _spare_forks_the_garbage() -> None:
    """Have collections in forks look at their own objects only, not at all that was imported and built.

    A trial undoes it before its first step.
    """
    gc.collect()
    gc.freeze()
