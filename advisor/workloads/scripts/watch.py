"""Watch a script's calls through PyTorch's hooks until one whole step is done, and pause the script there."""

import contextlib
import itertools
import multiprocessing.process
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.files.paths import INSTALLED
from advisor.python.loops import FoundLoop, Line, Pass, Where, lines_up, loops_around, stack_from, users_lines
from advisor.records import Place
from advisor.workloads.places import call_in_users_code
from advisor.workloads.scripts import TRAINED, EndsAtUpdate
from advisor.workloads.scripts.files import writing_aside
from advisor.workloads.scripts.running import Pause, Script, patched, without_workers

_MOST_CALLS = 64  # the model calls that are kept with their inputs; enough for a step
# TensorBoard's modules whose threads write the logs.
_LOGGERS = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")
_PYTORCHS = re.compile(f"({'|'.join(INSTALLED)})torch/")
# Seconds of predicting without an optimizer after which a script is paused, since a server's loop never ends.
_PREDICTS_S = 10.0
_MOST_ROUNDS = 1000  # an optimizer with more iterations in one update does the whole training in it
_GRACE_S = 5.0  # the longest wait for a killed process to end, in seconds


class NoLoopError(Exception):
    """The reason why no loop of a script can be measured."""


@dataclass(slots=True)
class ModelCall:
    """A call of a module with parameters, outside of other such calls, and the state of autograd and autocast."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: str
    gradients: str = "grad"
    trains: bool = True  # the module was in training mode

    @property
    def current(self) -> dict[str, Any]:
        """The settings under which the call was made, without those of inference."""
        return {} if self.autocast == "none" else {"precision.autocast": self.autocast}


@dataclass(slots=True)
class Seen:
    """The record of what a watched script did."""

    script: Script
    pause: Pause | None = None  # where the script was paused
    fitted: Any = None  # the object that a library's trainer trains

    # The data.
    loader: Any = None  # the loader of the step
    batch: Any = None  # the batch that the step used
    reads: set[Line] = field(default_factory=set)  # the lines on the stack when the batch was read
    # Maps the iterators that the script made to their loaders. The iterators have no workers.
    iterators: MutableMapping[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)

    # The step.
    frames: list[Where] = field(default_factory=list)  # the stack at the first update, innermost first
    called_at: list[Where] = field(default_factory=list)  # the stack at the last call of a model
    made: dict[Any, Place] = field(default_factory=dict)  # the calls that made optimizers and loaders
    calls: list[ModelCall] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)  # backward passes
    updates: list[Optimizer] = field(default_factory=list)
    round: tuple[Sequence[ModelCall], int] | None = None  # the calls and number of passes before the last update
    casts: str = "none"  # the type of autocast around any module, even around an inner module
    clip_norm: float | None = None
    changes_gradients: bool = False  # backward had options, or gradients were not clipped by ``clip_norm`` alone
    endless: bool = False  # one update is the whole training
    by_library: bool = False  # a library makes the updates in its own loop, which reads no loader
    by_hand: bool = False  # no optimizer makes the updates; ``frames`` is the stack at the second backward pass

    # Events outside of the step.
    goes_backward: bool = False  # the script computed gradients
    starts_processes: bool = False  # the script started or forked processes
    trains_elsewhere: bool = False  # one of these processes made an update
    goes_on: bool = False  # the script was paused while it predicted

    @property
    def loop(self) -> FoundLoop:
        """The loop in which the first update was made. Raises NoLoopError if no source code has such a loop.

        With a loader it is the innermost loop that reads the loader; else the innermost one with a backward pass.
        """
        if not (found := self.loops):
            raise NoLoopError("no loop in the script's own code stands around the update of the weights")
        lines = self.reads, {line for one in self.passes for line in one.at}
        return next((loop for some in lines for loop in found if loop.runs(some)), found[0])

    @property
    def loops(self) -> list[FoundLoop]:
        """The script's own loops around the first update, innermost first; or else a library's loops around it.

        If the library reads the loader, these are only the loops that read it. If the library reads no loader, these
        are all loops around the update except PyTorch's.
        """
        users = [where for where in self.frames if where.is_users]
        if found := [loop for at, where in enumerate(users) for loop in loops_around(where, users[:at])]:
            return found
        if self.by_library:
            below = [one for one in self.frames[: self.frames.index(users[-1])] if not one.is_users]
            return [loop for one in below if not _PYTORCHS.search(one.file) for loop in loops_around(one)]
        reading = {code for code, _ in self.reads}
        inner = itertools.takewhile(lambda one: not (one.is_users and one.code in reading), self.frames)
        of_library = (loop for where in inner if where.code in reading for loop in loops_around(where))
        return [loop for loop in of_library if loop.runs(self.reads)]

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that made an update, each once."""
        return list({id(one): one for one in self.updates}.values())

    @property
    def models(self) -> list[nn.Module]:
        """The called modules with parameters that were updated; without updates, with any parameters."""
        trained = {id(p) for one in self.updates for p in parameters_in(one)}
        return [m for m in self.called if any(not trained or id(p) in trained for p in m.parameters())]

    @property
    def called(self) -> list[nn.Module]:
        """The called modules with parameters, each once."""
        return list({id(call.module): call.module for call in self.calls}.values())


class Watch:
    """The hooks while a script runs. ``seen`` grows until the script is paused.

    The script is paused at the end of its first round: when it reads the loader again, or, without a loader, before
    the next update at the same lines. An update outside of any loop is ignored (some scripts make one to create the
    optimizer's state). After the first update, new files go aside too.
    """

    def __init__(self, script: Script) -> None:
        self.seen = Seen(script)
        self._is_on = True
        self._started: list[multiprocessing.process.BaseProcess] = []
        self._files = contextlib.ExitStack()
        self._makes_optimizers = False
        self._predicts_since: float | None = None
        self._owners = 0
        self._called: set[Line] = set()  # the lines of model calls since the last batch was read
        self._called_before: set[Line] = set()  # and before it: a loop may read ahead before its backward pass
        self._update_at: tuple[Line, ...] = ()  # the lines of the first update
        self._ahead: Any = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[Seen]:
        """Watch the code that runs inside this context."""
        with contextlib.ExitStack() as stack:
            for handle in (
                module_hooks.register_module_forward_pre_hook(self._before_forward),
                module_hooks.register_module_forward_hook(self._after_forward, with_kwargs=True, always_call=True),
                optimizer_hooks.register_optimizer_step_pre_hook(self._before_update),
                optimizer_hooks.register_optimizer_step_post_hook(self._after_update),
            ):
                stack.callback(handle.remove)
            wrappers = (
                (torch.Tensor, "backward", self._on_backward),
                (Optimizer, "__init__", self._on_new),
                (DataLoader, "__init__", self._on_new),
                (DataLoader, "__iter__", self._on_iter),
                (_BaseDataLoaderIter, "__next__", self._on_next_batch),
                (torch.nn.utils, "clip_grad_norm_", self._on_clip_norm),
                (torch.nn.utils, "clip_grad_value_", self._on_clip_values),
                (threading.Thread, "start", _on_new_thread),
                (multiprocessing.process.BaseProcess, "start", self._on_new_process),
                (os, "fork", self._on_fork),
                (torch.distributed, "init_process_group", _on_process_group),
                # ``torch.multiprocessing.spawn`` is a function; this is the module of the same name.
                (sys.modules["torch.multiprocessing.spawn"], "start_processes", self._on_spawn),
            )
            stack.enter_context(patched(*wrappers))
            stack.callback(self._stop_watching)
            stack.enter_context(writing_aside(new_ones_too=False))
            stack.enter_context(self._files)
            yield self.seen

    def _stop_watching(self) -> None:
        """Stop watching. The script may still hold watched functions under its own names: those do nothing then."""
        self._is_on = False
        if self.seen.trains_elsewhere:
            for process in self._started:
                with contextlib.suppress(ValueError):  # the script has closed it
                    process.kill()
                    process.join(_GRACE_S)

    def _leave(self, event: str = "", at: Any = None) -> Any:
        """Pause the script at an event, and stop watching. Return the value with which it is resumed."""
        self.seen.pause, self._is_on = Pause(event, at), False
        return self.seen.script.pause()

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._is_ours():
            if (casts := autocast()) != "none":
                self.seen.casts = casts
            self._owners += any(True for _ in module.parameters())

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if not self._is_ours() or not any(True for _ in module.parameters()):
            return
        *named, output = rest  # after a call that failed, PyTorch passes no keyword arguments
        kwargs: dict[str, Any] = named[0] if named else {}
        self._owners = max(0, self._owners - 1)
        if output is None or self._owners:
            return
        self.seen.called_at = stack_from(sys._getframe(1))
        self.seen.calls.append(ModelCall(module, args, kwargs, autocast(), gradients(), module.training))
        del self.seen.calls[:-_MOST_CALLS]
        if gradients() == "grad":
            self._called.update(lines_up(sys._getframe(1)))
        self._predicts_since = self._predicts_since or time.monotonic()
        trains = self._makes_optimizers or self.seen.goes_backward or self.seen.starts_processes
        if not trains and time.monotonic() - self._predicts_since > _PREDICTS_S:
            self.seen.goes_on = True
            self._leave()

    def _on_new(self, function: Callable[..., Any], made: Any, *args: Any, **kwargs: Any) -> None:
        self._makes_optimizers |= isinstance(made, Optimizer)
        function(made, *args, **kwargs)
        if self._is_ours() and (call := call_in_users_code()):
            self.seen.made[made] = call

    def _on_backward(self, function: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self._is_ours():
            return function(loss, *args, **kwargs)
        if self.seen.goes_backward and not self._makes_optimizers and not self.seen.frames:
            self.seen.by_hand = self._is_in_loop(stack_from(sys._getframe(1)))
        self.seen.goes_backward = True
        self.seen.passes.append(Pass(lines_up(sys._getframe(2)), frozenset(self._called or self._called_before)))
        self._called, self._called_before = set(), set()
        if args or any(value is not None and value is not False for value in kwargs.values()):
            self.seen.changes_gradients = True
        result = function(loss, *args, **kwargs)
        if self.seen.loader is None and (self.seen.endless or self.seen.by_hand):
            self._leave("backward", None if self.seen.endless else users_lines(lines_up(sys._getframe(2))))
        return result

    def _on_iter(self, function: Callable[..., Any], loader: Any) -> Any:
        """Iterate a loader without workers: worker processes would disturb forks, and one step needs none."""
        with without_workers(loader):
            iterator = function(loader)
        around = sys._getframe(2).f_locals.get("self")  # Accelerate's loader wraps PyTorch's
        self.seen.iterators[iterator] = around if getattr(around, "base_dataloader", None) is loader else loader
        return iterator

    def _on_next_batch(self, function: Callable[..., Any], iterator: Any) -> Any:
        loader = self.seen.iterators.get(iterator)
        trained = self.seen.updates or self.seen.by_hand
        if self._is_ours() and trained and loader is self.seen.loader is not None and gradients() == "grad":
            return self._leave("read", loader)
        batch = given = function(iterator)
        if hasattr(loader, "base_dataloader"):  # Accelerate reads a batch ahead
            given, self._ahead = self._ahead, batch
        # A training script that reads another loader without gradients evaluates.
        evaluates = self._makes_optimizers and gradients() != "grad" and self.seen.loader not in (None, loader)
        if self._is_ours() and loader is not None and not self.seen.updates and not evaluates:
            if not self.seen.passes:  # the calls were for an earlier batch (a validation before the training)
                self.seen.calls.clear()
            self.seen.passes.clear()
            self._called, self._called_before = set(), self._called or self._called_before
            if loader is not self.seen.loader:
                self.seen.reads.clear()
            self.seen.reads.update(lines_up(sys._getframe(1)))
            self.seen.loader, self.seen.batch = loader, given
        return batch

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if os.getpid() != self.seen.script.pid:
            os._exit(TRAINED)  # this is a process that the script forked; its loop is not measured
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        iterations = [group.get("max_iter", 0) for group in optimizer.param_groups]  # LBFGS has them
        if not self._is_ours() or not (has_closure or _has_gradients(optimizer)):
            return
        place = users_lines(lines_up(sys._getframe(1)))
        again = place == self._update_at  # by the same statement of the script
        is_other = self.seen.passes and not has_closure and optimizer not in self.seen.updates  # of the same round, if:
        again &= not (is_other and self.seen.round and len(self.seen.passes) == self.seen.round[1])
        if self.seen.updates and self.seen.loader is None and again:
            self._leave("update", place)
        elif not self.seen.frames:
            self.seen.by_library = again
            frames, self._update_at = stack_from(sys._getframe(1)), place
            self.seen.fitted = fitted_by_library(frames)
            if self.seen.fitted is not None:
                self.seen.frames = frames
                self._leave()
            elif not self._is_in_loop(frames):
                self.seen.calls.clear()
                self.seen.passes.clear()
                if has_closure and max(iterations, default=0) > _MOST_ROUNDS:
                    self.seen.frames, self.seen.updates, self.seen.endless = frames, [optimizer], True
                    self.seen.loader = self.seen.batch = None

    def _is_in_loop(self, frames: list[Where]) -> bool:
        """Whether the update of a stack is made in a loop. If so, drop a loader that this loop does not read."""
        try:
            loop = replace(self.seen, frames=frames).loop
        except NoLoopError:
            return False
        self.seen.frames = frames
        self._files.enter_context(writing_aside(new_ones_too=True))
        if not loop.runs(self.seen.reads):
            self.seen.loader = self.seen.batch = None
        return True

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_ours() and self.seen.frames and _has_gradients(optimizer):
            self.seen.updates.append(optimizer)
            self.seen.round = (tuple(self.seen.calls), len(self.seen.passes))

    def _on_clip_norm(
        self, function: Callable[..., Any], parameters: Any, max_norm: float, *args: Any, **kwargs: Any
    ) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        options = args or set(kwargs) - {"foreach", "error_if_nonfinite"} or self.seen.clip_norm not in (None, max_norm)
        clipped = {id(p) for p in parameters if p.grad is not None}
        trained = {id(p) for one in self.seen.called for p in one.parameters() if p.grad is not None}
        if options or (self._is_ours() and clipped != trained):
            self.seen.changes_gradients = True
        self.seen.clip_norm = float(max_norm)
        return function(parameters, max_norm, *args, **kwargs)

    def _on_clip_values(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.seen.changes_gradients = True
        return function(*args, **kwargs)

    def _on_new_process(self, function: Callable[..., Any], process: Any) -> None:
        self.seen.starts_processes = True
        if self._is_on:
            process._perf_advisor = EndsAtUpdate()
        function(process)
        self._started.append(process)

    def _on_spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Pause the script before it spawns ranks: the loops run in those processes."""
        if not self._is_ours() or self.seen.updates:
            return function(*args, **kwargs)
        self.seen.starts_processes = self.seen.trains_elsewhere = True
        return self._leave()

    def _on_fork(self, function: Callable[..., int]) -> int:
        self.seen.starts_processes = True
        return function()

    def looks_elsewhere(self) -> bool:
        """Whether a process that the script started made an update, while the script itself made none."""
        for process in self._started if not self.seen.updates else ():
            with contextlib.suppress(ValueError):  # the script has closed it
                self.seen.trains_elsewhere |= process.exitcode == TRAINED
        return self.seen.trains_elsewhere

    def _is_ours(self) -> bool:
        """Whether the script is watched, and the current code runs in its own thread and process."""
        return self._is_on and self.seen.script.runs and os.getpid() == self.seen.script.pid


def fitted_by_library(frames: list[Where]) -> Any:
    """The object that a library's trainer on the stack trains, in the form for its adapter; None without a trainer."""
    for where in frames:
        names, library = where.frame.f_locals, where.frame.f_globals.get("__name__", "")
        function = where.frame.f_code.co_name
        if library in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer") and function == "fit":
            module, data = names["model"], names.get("datamodule") or names.get("train_dataloaders")
            return (names["self"], module) if data is None else (names["self"], module, data)
        if library == "transformers.trainer" and function == "train":
            trainer = names["self"]
            trainer.optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # Accelerate's wrapper
            return trainer
        if library == "ultralytics.engine.model" and function == "train":
            return names["self"]
    return None


def _on_process_group(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a script with one rank use any free port, since other trials run the same script at the same time."""
    if os.environ.get("WORLD_SIZE") == "1":
        os.environ["MASTER_PORT"] = "0"
    return function(*args, **kwargs)


def _on_new_thread(function: Callable[..., Any], thread: Any) -> None:
    """Start a thread, unless it writes logs: a forked process lacks the thread, so its queue would fill up."""
    if type(thread).__module__ in _LOGGERS:
        thread._queue.put = thread.join = lambda *_, **__: None
    else:
        function(thread)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for p in parameters_in(optimizer))


def parameters_in(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def autocast() -> str:
    """The current type of autocast; ``none`` if it is off."""
    devices = (device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device))
    return next((str(torch.get_autocast_dtype(device)).removeprefix("torch.") for device in devices), "none")


def gradients() -> str:
    """The current value of the setting ``infer.grad``."""
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    return "grad" if torch.is_grad_enabled() else "no_grad"
