"""Host waits: the lines of a step at which the host waits for the device, and the time of each.

PyTorch's synchronisation debug mode warns in the thread and under the stack that waits, so the stack of the warning
names the user's line. The warning itself comes after the wait; what is timed is the call around it.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.files.paths import INSTALLED, PACKAGE, is_pythons_own
from advisor.machine.device import backend_of
from advisor.process.replaced import replaced
from advisor.records import SyncPlace
from advisor.runtime.step import InferStep, TrainStep
from advisor.trial.measurement.feed import Feed

SYNC_WARNING = "called a synchronizing CUDA operation"
_STEPS = 3
_TORCH = str(Path(torch.__file__).parent) + "/"
_STEP = (f"{PACKAGE / 'runtime'}/", *(f"{PACKAGE / 'portable' / name}" for name in ("steps.py", "loss_call.py")))
_WATCHING = f"{PACKAGE / 'trial'}/"
_IN_BACKWARD = ("", 0, "the backward pass")
_FAR_MORE_THAN_A_WAIT = (torch.Tensor.backward, torch.autograd.grad)

_Key = tuple[str, int, str]


@dataclass(slots=True)
class _Wait:
    """The number of waits at a line, and their seconds in all (None when a wait could not be timed)."""

    calls: int = 0
    seconds: float | None = 0.0


class SyncRecorder(TorchFunctionMode):
    """While entered, notes each wait by the user's line, and times the call of PyTorch that it happened in."""

    def __init__(self) -> None:
        super().__init__()
        self._waits: dict[_Key, _Wait] = {}
        self._untimed: list[_Key] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``; when it made the host wait, its time is the wait's."""
        seen = len(self._untimed)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if len(self._untimed) > seen and func not in _FAR_MORE_THAN_A_WAIT:
            self._timed(self._untimed[seen:], time.perf_counter() - start)
            del self._untimed[seen:]
        return result

    def places(self, steps: int) -> tuple[SyncPlace, ...]:
        """Every line that waited in this number of steps, the longest wait first."""
        for key in self._untimed:
            self._waits[key].seconds = None
        found = [
            SyncPlace(
                file, line, text, wait.calls / steps, None if wait.seconds is None else 1e3 * wait.seconds / steps
            )
            for (file, line, text), wait in self._waits.items()
        ]
        return tuple(sorted(found, key=lambda place: place.blocked_ms or 0.0, reverse=True))

    def note(self, frame: FrameType | None) -> None:
        """A wait happened under this stack."""
        key = _place_of(frame)
        self._waits.setdefault(key, _Wait()).calls += 1
        self._untimed.append(key)

    def note_call(self, frame: FrameType | None, seconds: float) -> None:
        """A call that does nothing but wait took these seconds under this stack."""
        self.note(frame)
        self._timed([self._untimed.pop()], seconds)

    def _timed(self, keys: list[_Key], seconds: float) -> None:
        for key in keys:
            wait = self._waits[key]
            if wait.seconds is not None:
                wait.seconds += seconds / len(keys)


def sync_places(step: TrainStep | InferStep, feed: Feed) -> tuple[SyncPlace, ...] | None:
    """The lines of an eager step that make the host wait; None on the CPU, and for a step that fails when watched.

    The copy of the batch to the device and what the plan has the loop do after the update are left out: other recipes
    price them.
    """
    backend = backend_of(step.device)
    if not backend.warns_of_waits:
        return None
    recorder = SyncRecorder()
    run = step._run if isinstance(step, TrainStep) else step.run
    try:
        for _ in range(_STEPS):
            batch = step.to_device(feed.next())
            backend.synchronize()
            with recording(recorder), backend.warning_of_waits():
                run(batch)
    except Exception:  # user code under a mode that few people run: the profile is worth having without it
        return None
    return recorder.places(_STEPS)


@contextlib.contextmanager
def recording(recorder: SyncRecorder) -> Iterator[None]:
    """Enter the recorder, and let it hear PyTorch's warnings and explicit ``torch.cuda.synchronize()`` calls."""
    synchronize = torch.cuda.synchronize

    def heard(message: Warning | str, *rest: Any, **more: Any) -> None:
        if SYNC_WARNING in str(message):
            recorder.note(sys._getframe(1))

    def timed_synchronize(device: Any = None) -> None:
        start = time.perf_counter()
        synchronize(device)
        recorder.note_call(sys._getframe(1), time.perf_counter() - start)

    with warnings.catch_warnings(), recorder, replaced(torch.cuda, "synchronize", timed_synchronize):
        warnings.simplefilter("always")
        warnings.showwarning = heard
        yield


def _place_of(frame: FrameType | None) -> _Key:
    """The innermost line of the stack outside PyTorch and Python, else PyTorch's innermost, else the backward pass."""
    in_torch: FrameType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_STEP):
        path = frame.f_code.co_filename
        if path.startswith(_TORCH):
            in_torch = in_torch or frame
        elif not path.startswith((_WATCHING, "<")) and not is_pythons_own(path):
            return _line(path, frame.f_lineno)
        frame = frame.f_back
    if in_torch is None or in_torch.f_code.co_filename.startswith(f"{_TORCH}autograd/"):
        return _IN_BACKWARD
    return _line(in_torch.f_code.co_filename, in_torch.f_lineno)


def _line(path: str, number: int) -> _Key:
    text = linecache.getline(path, number).strip()
    # Packages first: an environment often lies inside the project's folder.
    for part in (*INSTALLED, f"{Path.cwd()}/"):
        if part in path:
            return path.rpartition(part)[2], number, text
    return path, number, text
