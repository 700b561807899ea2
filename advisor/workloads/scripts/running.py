"""A script on a stack of its own, which is paused once in each round of its loop and goes on where it was left.

Nothing of the script ends where it is paused: its generators, ``with`` blocks and variables stay as they are, also in a
process that is forked meanwhile.
"""

import asyncio
import contextlib
import contextvars
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.errors import TargetError
from advisor.process.meanwhile import replaced
from advisor.python.loops import lines_up, users_lines
from advisor.workloads.scripts.files import writing_aside

# The loader of each iterator that a script made while it was watched. Such a loader has no workers.
Iterators = MutableMapping[Any, Any]
# Batches in a row that a loop may pass over with `continue`, such as the last and smaller ones. A count.
_MOST_SKIPPED = 16
# Scripts that were not run to their end: what would end with them, as their `finally` blocks, never runs.
_PAUSED: list[greenlet] = []


class Script:
    """A function that is paused from within, by itself or what it calls."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._greenlet = greenlet(lambda *_: run())
        self._greenlet.gr_context = contextvars.copy_context()
        self._outside: Any = None
        self._inference_mode: Any = None  # what ends the script's own while it is paused
        self.pid = os.getpid()  # of the process that lets it go on
        self.begins: Callable[[], None] | None = None  # called in the script when it goes on
        _PAUSED.append(self._greenlet)

    @property
    def runs(self) -> bool:
        """Whether the code that asks is the script's, in its thread."""
        return getcurrent() is self._greenlet

    def go_on(self, given: Any = None) -> bool:
        """Let the script run until its next pause, with this value. Return False if it has ended."""
        if self._greenlet.dead:
            return False
        self.pid, self._greenlet.parent = os.getpid(), getcurrent()
        self._outside, in_inference_mode = _modes(), torch.is_inference_mode_enabled()
        event_loop = asyncio._get_running_loop()
        self._inference_mode = None
        try:
            self._greenlet.switch(given)
        finally:
            if torch.is_inference_mode_enabled() != in_inference_mode:
                self._inference_mode = torch._C._InferenceMode(in_inference_mode)
            _set_modes(self._outside)
            asyncio._set_running_loop(event_loop)
        return not self._greenlet.dead

    def pause(self) -> Any:
        """Wait within the script until it is let go on, and return what it is given then."""
        own, event_loop = _modes(), asyncio._get_running_loop()
        is_own = own != self._outside  # as in a `with` block around the loop; else it has those of each step
        parent = self._greenlet.parent
        assert parent is not None, "it was let go on by another"
        given = parent.switch()
        asyncio._set_running_loop(event_loop)  # of the thread, as the modes are
        if is_own:
            _set_modes(own)
        if self.begins is not None:
            self.begins()
        return given


def _modes() -> tuple[Any, ...]:
    """The modes of PyTorch in this thread: autocast and gradients. All code in the thread shares them."""
    casts = tuple((torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda"))
    return casts, _autocasts_around(), torch.is_grad_enabled()


def _autocasts_around() -> int:
    """The number of active autocasts; at 0 PyTorch forgets the weights that it has cast."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_modes(modes: tuple[Any, ...]) -> None:
    casts, around, records = modes
    for device, (enabled, dtype) in zip(("cpu", "cuda"), casts, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    if (more := around - _autocasts_around()) != 0:
        torch.clear_autocast_cache()
    for _ in range(abs(more)):
        _ = torch.autocast_increment_nesting() if more > 0 else torch.autocast_decrement_nesting()
    torch.set_grad_enabled(records)


@dataclass(frozen=True, slots=True)
class Pause:
    """Where a round ends: at a ``read``, before an ``update``, or behind a ``backward`` pass.

    ``at`` is the loader that is read, or the lines of the user's; None for any lines.
    """

    event: str = ""
    at: Any = None


class ScriptStep:
    """Runs one round of a paused script on a batch, and returns the last tensor that ``backward`` was called on.

    A loader's iterators return the given batch and never end. Other loaders are read as usual, and so is this one
    without gradients, since that is an evaluation. For a batch that the loop skips, the previous loss is returned.
    Raises TargetError if the script ends, or if a round trains none of the ``optimizers``: then it has made another
    model, without settings.
    """

    loop: Any = None  # the FoundLoop that the rounds are of, where it is one
    casts = "none"  # the type that the script's own autocast casts to within the step
    capture_problem = (
        "the step is one round of your script's loop, and a replay would skip its counting and reading; "
        "`perf-advisor init` writes the script's parts as a build() to complete"
    )

    def __init__(
        self, script: Script, place: str, pause: Pause, iterators: Iterators, optimizers: Sequence[Optimizer]
    ) -> None:
        self.script, self._place, self._pause, self._iterators = script, place, pause, iterators
        self._optimizers = optimizers
        self._anew: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._loss, self._losses = torch.zeros(()), list[torch.Tensor]()
        self._skipped = 0
        self._updated: list[Optimizer] = []
        self._replays = 0

    def __call__(self, batch: Any) -> torch.Tensor:
        """Run a round."""
        self._losses.clear()
        self._updated.clear()
        self._replays = 0
        with self._hooked(), writing_aside(new_ones_too=True):
            goes_on = self.script.go_on(batch)
        trains = self._losses or self._updated or self._replays
        self._skipped = 0 if trains else self._skipped + 1
        if not goes_on or self._skipped > _MOST_SKIPPED or self._trains_another():
            raise TargetError(
                f"the loop at {self._place} has come to its end.",
                "Let it go on for longer, with arguments of the script after --, or take out what ends it.",
            )
        self._loss = self._losses[-1].detach() if self._losses else self._loss
        return self._loss

    def _trains_another(self) -> bool:
        """Whether all updates of a round are of parameters that no optimizer had before."""
        if not self._updated or any(one in self._optimizers for one in self._updated):
            return False
        known, updated = ({id(p) for one in some for group in one.param_groups for p in group["params"]}
                          for some in (self._optimizers, self._updated))  # fmt: skip
        return bool(known) and known.isdisjoint(updated)

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        hook = register_optimizer_step_pre_hook(self._on_update)
        wrappers = (
            (_BaseDataLoaderIter, "__next__", self._on_next_batch),
            (DataLoader, "__iter__", self._on_iter),
            (torch.Tensor, "backward", self._on_backward),
            (OneCycleLR, "step", _step_schedule),
            (torch.cuda.CUDAGraph, "replay", self._on_replay),
        )
        try:
            with patched(*wrappers):
                yield
        finally:
            hook.remove()

    def _on_next_batch(self, read: Callable[..., Any], iterator: Any) -> Any:
        loader = self._iterators.get(iterator) if self.script.runs else None
        if loader is None:
            return read(iterator)
        if loader is self._pause.at and torch.is_grad_enabled():
            return self.script.pause()
        if iterator not in self._anew:
            self._anew[iterator] = DataLoader.__iter__(loader)
        return read(self._anew[iterator])

    def _on_iter(self, begin: Callable[..., Any], loader: Any) -> Any:
        read_by = self._pause.at  # Accelerate's loaders iterate the one inside them
        is_measured = loader is getattr(read_by, "base_dataloader", read_by)
        if not is_measured or not self.script.runs or not torch.is_grad_enabled():
            return begin(loader)
        with without_workers(loader):  # it is not read
            iterator = begin(loader)
        self._iterators[iterator] = read_by
        return iterator

    def _on_backward(self, backward: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._losses.append(loss)
        backward(loss, *args, **kwargs)
        self._end_at("backward")

    def _on_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._updated.append(optimizer)
        self._end_at("update")

    def _end_at(self, event: str) -> None:
        """Pause the script where this event is the end of its round."""
        lines = self._pause.at
        if event == self._pause.event and self.script.runs and lines in (None, users_lines(lines_up(sys._getframe(2)))):
            self.script.pause()

    def _on_replay(self, replay: Callable[..., Any], graph: Any) -> None:
        self._replays += 1  # the step of a changed file may be a captured one
        replay(graph)


def _step_schedule(step: Callable[..., Any], schedule: OneCycleLR, *args: Any) -> None:
    if schedule.last_epoch >= schedule.total_steps - 1:  # it begins anew, as the loop does
        schedule.last_epoch = -1
    step(schedule, *args)


@contextlib.contextmanager
def patched(*wrappers: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Have ``wrapper(function, *args)`` called in place of functions, each given by its owner and its name."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrapper in wrappers:
            stack.enter_context(replaced(owner, name, _wrapped(getattr(owner, name), wrapper)))
        yield


def _wrapped(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *args, **kwargs)

    return call


@contextlib.contextmanager
def without_workers(loader: Any) -> Iterator[None]:
    """Have a loader iterated by the process itself."""
    with replaced(loader, "num_workers", 0), replaced(loader, "timeout", 0):
        yield
