"""A process that builds the workload once and forks the trials from it.

A fork replaces a new build if building has started no threads (a fork would lack them) and has not used CUDA (a fork
could not use it any more). Otherwise the builder says why, and each trial builds the target. It is then forked from a
builder that has only imported the same libraries: they took 8 of the 12 s of a trial with Hugging Face's Trainer.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle

import psutil
import torch

from advisor.figures.formatting import format_first
from advisor.files.paths import is_library
from advisor.process.channel import send_message
from advisor.process.household import lead_own_group
from advisor.process.logs import redirect_output
from advisor.process.meanwhile import environment, replaced
from advisor.records import BuilderReady, Forked, ForkEnded, TargetSpec, TrialSpec
from advisor.trial.main import trial_main
from advisor.trial.measurement.draws import seed_all
from advisor.workloads.entrypoint import load_target, one_line
from advisor.workloads.loop import Loop

# With this, PyTorch asks NVML and not CUDA whether there is a GPU (PyTorch's documentation, "CUDA semantics").
_ASK_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_HINT = "start them with the first batch or the first step, not while building"
_THREADS_SHOWN = 3
# Threads of a backward pass; after one, PyTorch refuses a backward pass in a fork (its wiki, "Autograd and Fork").
_PYTORCHS = "pt_autograd"
_OF_TRACKERS = "wandb-"  # trackers record nothing in a trial
_SETTLES_WITHIN_S = 0.5
# The modules that the first torch.compile imports, which took 2.5 s of each compiling trial on an H200's host. The
# builder imports them too, while the first of these trials does.
_COMPILER = "torch._inductor.compile_fx"
_LOOK_EVERY_S = 0.02


def builder_main(
    target: TargetSpec, seed: int, connection: Connection, log_path: str, imports: BuilderReady | None = None
) -> None:
    """Build the target or only import its ``imports``, report whether trials can be forked, and fork one per spec."""
    lead_own_group()
    redirect_output(log_path)
    modules, variables = set(sys.modules), dict(os.environ)
    try:
        loop, threads, problem = _build(target, seed, imports)
    except BaseException as error:  # the trials will raise it again and report it
        send_message(connection, BuilderReady(one_line(error)))
        return
    files = {name: getattr(one, "__file__", None) for name, one in [*sys.modules.items()] if name not in modules}
    new = tuple(name for name, file in files.items() if file and is_library(file))
    changed = {name: value for name, value in os.environ.items() if variables.get(name) != value}
    send_message(connection, BuilderReady(problem, new, changed) if problem else BuilderReady())
    if not problem:
        gc.collect()
        gc.freeze()  # in forks, until their first step, the collector looks at their own objects only
        _serve(connection, loop, threads)


def _build(target: TargetSpec, seed: int, imports: BuilderReady | None) -> tuple[Loop | None, int, str]:
    """The workload, the number of PyTorch's threads in its trials, and the reason against forking this process.

    Meanwhile PyTorch computes with one thread, even if the target asks for more: no thread pool survives a fork, and in
    a fork GNU's OpenMP would wait for it for ever.
    """
    wanted = torch.get_num_threads()
    asks_cuda = torch.cuda.is_current_stream_capturing
    stopped = False

    def want(number: int) -> None:
        nonlocal wanted
        wanted = int(number)

    def is_capturing() -> bool:
        """Like PyTorch's function, but without starting CUDA's driver; transformers calls it in every forward pass."""
        return torch.cuda.is_initialized() and asks_cuda()

    def stop() -> None:
        """Stop building at the first use of CUDA: this process could not be forked, so each trial builds for itself."""
        nonlocal stopped
        stopped = True
        raise SystemExit

    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.monitor_interval = 0  # no thread that refreshes progress bars, which `from_pretrained` shows
    with environment(_ASK_NVML):
        # Threads that NVML starts when it is first asked are not the target's.
        on_gpu = target.device != "cpu" and torch.cuda.is_available()
        before = _thread_ids()
        torch.set_num_threads(1)
        seed_all(seed)
        capturing = replaced(torch.cuda, "is_current_stream_capturing", is_capturing)
        starting = replaced(torch.cuda, "_lazy_init", stop) if on_gpu else contextlib.nullcontext()
        with replaced(torch, "set_num_threads", want), capturing, starting:
            if imports is not None:
                os.environ.update(imports.environment)
                for name in imports.modules:
                    with contextlib.suppress(Exception):  # a module that another one creates during its own import
                        importlib.import_module(name)
            try:
                loop = load_target(target) if imports is None else None
            except BaseException:  # even an error of a script that catches SystemExit
                if not stopped:
                    raise
                loop = None
    problem = ""
    if processes := multiprocessing.active_children():
        problem = f"building the model starts processes ({processes[0].name}): {_HINT}"
    elif torch.distributed.is_available() and torch.distributed.is_initialized():
        problem = "the target starts a process group, whose threads no fork has"
    elif stopped or torch.cuda.is_initialized():
        problem = "building the model, or a library that it imports, uses CUDA: leave the model on the CPU"
    elif started := _started_threads(before):
        shown = [name if count == 1 else f"{count} x {name}" for name, count in Counter(started).most_common()]
        problem = f"building the model starts threads ({format_first(shown, _THREADS_SHOWN)}): {_HINT}"
    return loop, wanted, problem


def _started_threads(before: set[int]) -> list[str]:
    """The names of the threads that a fork would lack: Python's, PyTorch's, and other busy ones."""
    until = time.monotonic() + _SETTLES_WITHIN_S  # to end or become idle: libraries start idle ones anew in a fork
    while True:
        pythons = {one.native_id: one.name for one in threading.enumerate() if not one.name.startswith(_OF_TRACKERS)}
        names: list[str] = []
        for number in sorted(_thread_ids() - before):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                thread = psutil.Process(number)
                idle = thread.status() == psutil.STATUS_SLEEPING and not thread.name().startswith(_PYTORCHS)
                if number in pythons or not idle:
                    names.append(pythons.get(number, thread.name()))
        if not names or time.monotonic() > until:
            return names
        time.sleep(_LOOK_EVERY_S)


def _thread_ids() -> set[int]:
    """The system's numbers of all threads of this process, not only Python's."""
    return {thread.id for thread in psutil.Process().threads()}


def _serve(connection: Connection, loop: Loop | None, threads: int) -> None:
    """Fork a trial for each spec and report the end of each, until the other end of the channel closes."""
    trials: dict[BaseProcess, Connection] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            if connection.poll(_LOOK_EVERY_S if trials else None):
                spec, trial, end = _forked(connection, loop, threads, trials.values())
                trials[trial] = end
                send_message(connection, Forked(trial.pid or 0))
                if _COMPILER not in sys.modules and any(key.startswith("compile.") for key in spec.settings):
                    with environment(_ASK_NVML), contextlib.suppress(Exception):  # a trial raises and reports it
                        importlib.import_module(_COMPILER)  # its workers start with the first compilation
                    gc.collect()
                    gc.freeze()
            # Not by the process's sentinel, since DataLoader workers that outlive the trial hold it open.
            for ended in [trial for trial in trials if not trial.is_alive()]:
                with trials.pop(ended) as told, contextlib.suppress(OSError):  # the receiver may be gone
                    send_message(told, ForkEnded(ended.exitcode))


def _forked(
    connection: Connection, loop: Loop | None, threads: int, others: Iterable[Connection]
) -> tuple[TrialSpec, BaseProcess, Connection]:
    """Receive a spec, the trial's end of the channel and the pipe that reports its exit; fork the trial."""
    spec, asked_at = connection.recv()
    channel, end = Connection(recv_handle(connection)), Connection(recv_handle(connection), readable=False)

    def run() -> None:
        for builders in (connection, end, *others):
            builders.close()
        torch.set_num_threads(threads)
        trial_main(spec, channel, asked_at, loop=loop)

    trial: BaseProcess = multiprocessing.get_context("fork").Process(target=run, name="trial")
    trial.start()
    channel.close()
    return spec, trial, end
