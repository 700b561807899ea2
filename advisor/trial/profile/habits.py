"""Coding habits in the instrumented pass: ways to validate, timed side by side, and lines that synchronise the device.

PyTorch's synchronisation debug mode warns after the wait, in the stack of the call that waits. The stack gives the
user's line, and the time since the start of the call gives the duration of the wait.
"""

import contextlib
import copy
import functools
import linecache
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.files.paths import INSTALLED, PACKAGE, is_pythons_own
from advisor.machine.device import backend_of
from advisor.process.meanwhile import replaced
from advisor.records import HabitRow, Profile, SyncPlace
from advisor.step.compile import uncompiled
from advisor.step.step import GRAD_CONTEXTS, InferStep, TrainStep, evaluating
from advisor.trial.measurement.draws import Feed

_VALIDATION_LIMIT_S = 0.3
_MOST_ROUNDS = 30
SYNC_WARNING = "called a synchronizing CUDA operation"  # text in the warning of PyTorch's synchronisation debug mode
_STEPS = 3  # number of steps that are watched for waits
_TORCH = str(Path(torch.__file__).parent) + "/"
# perf-advisor's own frames: the code that runs a step, and the code that watches it.
_STEP = (f"{PACKAGE / 'step'}/",)
_WATCHING = f"{PACKAGE / 'trial'}/"
_IN_BACKWARD = ("", 0, "the backward pass")
_FAR_MORE_THAN_A_WAIT = (torch.Tensor.backward, torch.autograd.grad)

_Key = tuple[str, int, str]


def with_habits(measured: Profile, step: TrainStep | InferStep, feed: Feed) -> Profile:
    """Return the profile with the cost of this loop's habits and the lines that make its host wait."""
    eager = copy.copy(step)
    eager.model = uncompiled(step.model)  # the compiler would compile again for each mode
    rows: tuple[HabitRow, ...] = ()
    if isinstance(eager, TrainStep):
        eager._whole = None
        rows = validation_rows(eager, eager.to_device(feed.next()), limit_s=_VALIDATION_LIMIT_S)
    return replace(measured, habits=rows, sync_places=sync_places(eager, feed))


def stop_debugging() -> None:
    """Switch off a profiler or NVTX ranges that the user left on, since the instrumented pass has its own profiler."""
    if torch._C._autograd._profiler_enabled():
        torch._C._autograd._disable_profiler()


def validation_rows(step: TrainStep, batch: Any, *, limit_s: float) -> tuple[HabitRow, ...]:
    """A validation step (forward and loss, in evaluation mode) in each grad mode: its time, and its memory on a GPU.

    Every round times all modes, so that drift affects all equally. Empty if the model fails in evaluation mode.
    """

    def validate(way: str) -> None:
        with GRAD_CONTEXTS[way]():
            step.loss(step.forward(batch), batch)

    backend = backend_of(step.device)
    calls = {way: functools.partial(validate, way) for way in ("grad", "no_grad", "inference_mode")}
    times_s: dict[str, list[float]] = {way: [] for way in calls}
    with evaluating(step.model):
        try:
            peaks = {way: backend.peak_of(call) for way, call in calls.items()}
            started = time.perf_counter()
            for done in range(_MOST_ROUNDS):
                if done and time.perf_counter() - started > limit_s:
                    break
                for way, call in calls.items():
                    times_s[way].append(backend.seconds_of(call))
        except Exception:  # the user's model may fail in a mode that it never uses
            return ()
    return tuple(HabitRow("eval_no_grad", way, 1e3 * median(times), peaks[way]) for way, times in times_s.items())


class SyncRecorder(TorchFunctionMode):
    """In this context, records each wait with the user's line, timed from the start of the PyTorch call."""

    def __init__(self) -> None:
        super().__init__()
        self._waits: dict[_Key, list[float | None]] = {}  # the seconds of each wait, None if unknown
        self._since: float | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, which may make the host wait."""
        self._since = None if func in _FAR_MORE_THAN_A_WAIT else time.perf_counter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._since = None

    def places(self, steps: int) -> tuple[SyncPlace, ...]:
        """Every line that waited in this number of steps, the longest wait first."""
        found = [
            SyncPlace(*key, len(waits) / steps, None if None in waits else 1e3 * sum(filter(None, waits)) / steps)
            for key, waits in self._waits.items()
        ]
        return tuple(sorted(found, key=lambda place: place.blocked_ms or 0.0, reverse=True))

    def waited(self, frame: FrameType | None, since: float | None = None) -> None:
        """Record a wait of this line that ends now. It began at ``since`` or, if None, when the previous one ended."""
        now, began = time.perf_counter(), since or self._since
        self._waits.setdefault(_place_of(frame), []).append(None if began is None else now - began)
        self._since = None if self._since is None else now


def sync_places(step: TrainStep | InferStep, feed: Feed) -> tuple[SyncPlace, ...] | None:
    """The lines of an eager step that make the host wait; None on the CPU, or if watching fails.

    Copies of the batch and work after the update are left out, since other recipes measure them.
    """
    backend = backend_of(step.device)
    if not backend.is_ahead:
        return None
    recorder = SyncRecorder()
    try:
        for _ in range(_STEPS):
            batch = step.to_device(feed.next())
            backend.synchronize()
            with recording(recorder), backend.warning_of_waits():
                step.compute(batch)
    except Exception:  # user code may fail in this rare mode; the profile is useful without it
        return None
    return recorder.places(_STEPS)


@contextlib.contextmanager
def recording(recorder: SyncRecorder) -> Iterator[None]:
    """Enter the recorder, and pass PyTorch's warnings and explicit ``torch.cuda.synchronize()`` calls to it."""
    synchronize = torch.cuda.synchronize

    def heard(message: Warning | str, *rest: Any, **more: Any) -> None:
        if SYNC_WARNING in str(message):
            recorder.waited(sys._getframe(1))

    def timed_synchronize(device: Any = None) -> None:
        start = time.perf_counter()
        synchronize(device)
        recorder.waited(sys._getframe(1), start)

    with warnings.catch_warnings(), recorder, replaced(torch.cuda, "synchronize", timed_synchronize):
        warnings.simplefilter("always")
        warnings.showwarning = heard
        yield


def _place_of(frame: FrameType | None) -> _Key:
    """The innermost line of the stack outside PyTorch and Python; else PyTorch's innermost; else the backward pass."""
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
    # Packages first, since an environment often lies inside the project's folder.
    for part in (*INSTALLED, f"{Path.cwd()}/"):
        if part in path:
            return path.rpartition(part)[2], number, text
    return path, number, text
