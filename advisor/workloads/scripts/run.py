"""Run a script as ``python train.py`` does, up to the end of its first whole step."""

import ast
import contextlib
import importlib
import itertools
import os
import sys
import termios
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.process.meanwhile import replaced
from advisor.records import Place
from advisor.workloads.hubs.huggingface import of_trainer
from advisor.workloads.loop import Loop
from advisor.workloads.places import LoopPlaces, place_of_call, places_of_call, places_of_made
from advisor.workloads.scripts.files import compiled_by, source_of
from advisor.workloads.scripts.plain import workload_of
from advisor.workloads.scripts.running import Script, with_heads
from advisor.workloads.scripts.watch import NoLoopError, Seen, Watch


def script_workload(script: str, directory: str) -> Any:
    """Run a script with ``sys.argv``, and return its loop. Raises TargetError, or any error of the script."""
    seen = watched(script, directory)
    try:
        workload = workload_of(seen)
        if any(kind.__module__ == "transformers.trainer" for kind in type(workload).__mro__):
            workload = of_trainer(workload)
            files = dict.fromkeys(where.file for where in seen.frames if where.is_users)
            workload.places = tuple(place_of_call("arguments", "TrainingArguments", files))
        elif isinstance(workload, Loop):
            workload.places = tuple(places_of(seen, workload.models or [workload.model]))
        return workload  # noqa: TRY300 - finding the places may also raise NoLoopError
    except NoLoopError as problem:
        check_seen(script, seen)
        hint = f"`perf-advisor init {script}` writes a build() from the script's lines, for you to complete."
        raise TargetError(f"the loop of {script} cannot be measured as it is: {problem}.", hint) from problem
    finally:  # the paused script keeps these lists, and with them tensors
        for one in (seen.frames, seen.called_at, seen.calls):
            one.clear()
        seen.batch = seen.round = None


def places_of(seen: Seen, models: Sequence[Any]) -> Iterator[Place]:
    """The places in a script's files where settings of these models can be written."""
    views = [where for where in seen.frames or seen.called_at if where.is_users]
    yield from places_of_made(seen.made, views, models, seen.optimizers, seen.loader)
    yield from place_of_call("compile call", "torch.compile", dict.fromkeys(view.file for view in views))
    if not seen.frames or not models:
        yield from places_of_call(views)
        return
    with contextlib.suppress(NoLoopError):
        if (loop := seen.loop).where.is_users:
            yield from LoopPlaces(loop, views, models[0], seen.loader).of(seen.passes)


def watched(script: str, directory: str) -> Seen:
    """Run a script until its first whole step is done, or to its end, and return what was seen."""
    path = Path(directory, script).resolve()
    source = source_of(path)
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    code = with_heads(source, str(path))
    package = _package_of(path, ast.parse(source))
    sys.path.insert(0, str(path.parents[len(package)]))

    def run() -> None:
        try:
            if package:
                module.__package__ = ".".join(package)
                importlib.import_module(module.__package__)
            exec(code, vars(module))  # noqa: S102 - it is the user's script
        except SystemExit as error:
            if error.code:
                raise
        except Exception:  # a script may fail because the processes that it started have ended
            if not watch.looks_elsewhere():
                raise
        finally:
            if os.getpid() != watch.seen.script.pid:
                os._exit(0)  # this is a process that the script forked
            watch.looks_elsewhere()

    watch = Watch(Script(run))
    terminal_as_input()
    # Workers of another kind would import the script, and run what it has outside its guard.
    forked = property(lambda loader: get_context("fork") if loader.num_workers else None, lambda *_: None)
    DataLoader.multiprocessing_context = forked  # type: ignore[method-assign, assignment]
    # The script's own compiled code, which would compile the hooks too, is run as it is written.
    imports = replaced(SourceFileLoader, "get_code", compiled_by(with_heads))
    with imports, torch.compiler.set_stance("force_eager"), watch.watching() as seen:
        seen.script.go_on()
    return seen


def _package_of(path: Path, tree: ast.Module) -> tuple[str, ...]:
    """The package of a script with relative imports, as for ``python -m``; empty without such imports."""
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    if not levels:
        return ()
    folders = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
    return tuple(one.name for one in reversed(path.parents[: max([*levels, len(folders)])]) if one.name)


def terminal_as_input() -> None:
    """Make standard input a terminal of 80 columns without a user, because some scripts ask for its size."""
    with contextlib.suppress(OSError):
        ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        os.write(ours, b"\x04" * 64)  # Ctrl+D: the end of the input
        os.dup2(theirs, 0)
        os.close(theirs)


def check_seen(script: str, seen: Seen) -> None:
    """Raise TargetError if the script's own thread and process neither trained nor called a model."""
    if seen.updates or (seen.calls and not seen.starts_processes):
        return
    if seen.starts_processes:
        raise TargetError(
            f"{script} trains in processes of its own (fork, multiprocessing or spawn), which are not watched.",
            "Give options after -- with which the script trains in one process. Or write it for torchrun, and start it "
            "with --gpus N. Or write a build() that returns its parts.",
        )
    made = f"name the function that makes your model, as in {script}:build"
    raise TargetError(
        f"{script} ended without a training loop: no model was called in its own thread.",
        f"Give it the arguments that make it train, after --; or {made}.",
    )
