"""Times the optimizer steps of a program from inside. This file is copied to a folder on the program's path.

PyTorch calls ``watch`` at the end of its import, because an entry point beside the copy registers it as a backend
(https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html, since 2.5). The program's Python may differ
from ours, so this file imports only the standard library and PyTorch. A step ends when the program's first optimizer
has stepped (PyTorch's global hook), or when a CUDA graph with this optimizer's step was replayed. Steps are timed in
blocks; only the end of a block waits for the device. Each process writes its own file, with one line of JSON per
record.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, TextIO

MODULE = "perf_advisor_watch"  # the name of the copy
FOLDER = "PERF_ADVISOR_STEPS"  # the environment variable with the folder for the records
BLOCK_S, BLOCK_STEPS = 0.05, 3
LOSSES = 20  # the number of first losses that are written
_OTHERS_S = 2.0  # after so many seconds without a step of the counted optimizer, another optimizer is counted


class StepWatch:
    """Records the steps and losses of this process."""

    def __init__(self, torch: Any, folder: str) -> None:
        self._torch, self._folder = torch, folder
        self._file: TextIO | None = None
        self._pace: int | None = None  # the id of the optimizer whose steps are counted
        self._paced = time.perf_counter()  # the time of its last step
        self._recorded: list[int] = []  # the optimizers that have stepped in the current graph capture
        self._losses = 0
        self._scaled = False  # a gradient scaler's loss was written; the next backward pass is on the scaled loss
        self._begun: float | None = None
        self._steps = 0

    def install(self) -> None:
        """Start to watch optimizers, graphs and losses."""
        torch = self._torch
        optimizers = importlib.import_module("torch.optim.optimizer")  # it is not an attribute of torch.optim
        optimizers.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._step(id(optimizer)))
        backward, scale, graphs = torch.Tensor.backward, torch.amp.GradScaler.scale, torch.cuda.CUDAGraph
        capture_end, replay = graphs.capture_end, graphs.replay

        def noted_backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._scaled:
                self._loss(tensor)
            self._scaled = False
            return backward(tensor, *args, **kwargs)

        def noted_scale(scaler: Any, outputs: Any) -> Any:
            if isinstance(outputs, torch.Tensor):
                self._loss(outputs)
                self._scaled = True
            return scale(scaler, outputs)

        def noted_capture_end(graph: Any) -> Any:
            graph.optimizers, self._recorded = self._recorded, []  # even if the capture failed
            return capture_end(graph)

        def noted_replay(graph: Any) -> Any:
            result = replay(graph)
            for optimizer in getattr(graph, "optimizers", ()):
                self._step(optimizer)
            return result

        torch.Tensor.backward, torch.amp.GradScaler.scale = noted_backward, noted_scale
        graphs.capture_end, graphs.replay = noted_capture_end, noted_replay

    def _loss(self, tensor: Any) -> None:
        if self._losses >= LOSSES or tensor.numel() != 1 or self._is_capturing():
            return
        self._losses += 1
        self._write(loss=float(tensor.detach()))

    def _step(self, key: int) -> None:
        if self._is_capturing():
            self._recorded.append(key)
            return
        if self._pace is None:
            self._write(first=time.time())
            self._pace = key
        now = time.perf_counter()
        if key != self._pace:
            if now - self._paced < _OTHERS_S:
                return
            self._pace, self._begun = key, None
        self._paced = now
        if self._begun is None:
            self._wait()
            self._begun, self._steps = time.perf_counter(), 0
            return
        self._steps += 1
        if now - self._begun >= BLOCK_S and self._steps >= BLOCK_STEPS:
            self._wait()
            ended = time.perf_counter()
            self._write(seconds=ended - self._begun, steps=self._steps, peak_bytes=self._peak_bytes())
            self._begun, self._steps = time.perf_counter(), 0

    def _is_capturing(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _wait(self) -> None:
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _peak_bytes(self) -> int:
        """The peak of PyTorch's reserved GPU memory, or without a GPU of the process's resident memory, in bytes."""
        if self._torch.cuda.is_initialized():
            return int(self._torch.cuda.max_memory_reserved())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _write(self, **seen: float) -> None:
        if self._file is None:
            self._file = Path(self._folder, f"{os.getpid()}.jsonl").open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._file.write(json.dumps(seen) + "\n")


def watch() -> None:
    """Watch this process; of several ranks, only rank 0."""
    if os.environ.get("RANK", "0") == "0":
        StepWatch(sys.modules["torch"], os.environ[FOLDER]).install()
