"""Capture a call in a CUDA graph (see PyTorch's documentation: CUDA semantics, CUDA Graphs)."""

import functools
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import transformer

from advisor.files.paths import is_library
from advisor.process.meanwhile import replaced


class CudaGraph:
    """A call captured in a CUDA graph. Each replay overwrites ``result``, the return value of the call."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph = torch.cuda.CUDAGraph()
        self.result: Any = None

    def warm_up(self, call: Callable[[], Any]) -> Any:
        """Run a call eagerly on the capture stream, because autograd's nodes stay on the stream that made them."""
        stream, current = capture_stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = call()
        current.wait_stream(stream)
        return result

    def capture(
        self, call: Callable[[], Any], generators: Iterable[torch.Generator] = (), beside: "CudaGraph | None" = None
    ) -> None:
        """Capture a call without running its kernels. The call draws from the device's ``generators``.

        The graph shares its memory with the graph ``beside``: each replay overwrites the other's results. Raises the
        error of the call, or PyTorch's error of the capture.
        """
        for generator in generators:
            self.graph.register_generator_state(generator)
        failure: Exception | None = None
        draws = torch.cuda.get_rng_state(self.device)
        try:
            with self._capturing(self.graph, None if beside is None else beside.graph.pool()):
                try:
                    self.result = call()
                except Exception as error:  # keep it: the end of a failed capture raises a less clear error
                    failure = error
        except Exception as error:
            failure = failure or error
        if failure is not None:
            # In PyTorch 2.11, random generators stay in capture mode after a failed capture. A new capture resets them.
            with suppress(RuntimeError), self._capturing(torch.cuda.CUDAGraph()):
                torch.zeros(1, device=self.device)
            torch.cuda.set_rng_state(draws, self.device)
            raise failure

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
        stream = capture_stream(self.device)
        current = torch.cuda.current_stream(self.device)  # a failed capture would leave its own stream current
        # A loader's pinning thread calls CUDA during the capture. In other error modes this ends the capture.
        captures = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.stream(current), captures:
            yield

    def replay(self) -> None:
        """Run the captured kernels."""
        self.graph.replay()


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The capture stream of a device, one for all graphs, because libraries allocate a workspace for each stream."""
    return torch.cuda.Stream(device)


def forget_accumulators(modules: Iterable[torch.nn.Module], parameters: Iterable[torch.Tensor]) -> None:
    """Make autograd create its gradient accumulation nodes again, on the stream that uses them next.

    A node lives as long as an earlier loss (in a user's variable, for example). It stays on the stream of that loss,
    and a capture cannot wait for this stream. Assigning data of another type makes autograd drop the node. Models with
    DistributedDataParallel are left alone, since their hooks are on these nodes.
    """
    layers = [layer for module in modules for layer in module.modules()]
    if any(isinstance(layer, torch.nn.parallel.DistributedDataParallel) for layer in layers):
        return
    for parameter in {*parameters, *(one for layer in layers for one in layer.parameters(recurse=False))}:
        data = parameter.data
        is_plain = type(data) is torch.Tensor and data.layout is torch.strided
        if is_plain and parameter.is_leaf and parameter.requires_grad:
            other = torch.float32 if data.dtype is torch.float16 else torch.float16
            parameter.data = torch.empty(0, dtype=other, device=data.device)
            parameter.data = data


def reason_of(error: Exception) -> str:
    """PyTorch's message for a failed capture, and the user's line that caused it."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU ran out of memory during the capture of the step"
    lines = traceback.extract_tb(error.__traceback__)
    users = [line for line in lines if not is_library(line.filename)]
    place = f" ({Path(users[-1].filename).name}, line {users[-1].lineno}: {users[-1].line})" if users else ""
    return f"{str(error).strip().partition(chr(10))[0][:200]}{place}"


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Inside this context, tell code in eager steps too that a graph is being captured.

    Some code then behaves differently: Hugging Face makes attention masks without reading their values, and that is to
    be compiled before a capture. PyTorch's transformers (2.6 to 2.14) otherwise make the host wait to choose kernels.
    """
    # Use the same function objects each time; otherwise compilers compile again.
    asked = replaced(torch.cuda, "is_current_stream_capturing", _yes)
    with asked, replaced(transformer, "_detect_is_causal_mask", _is_called_causal):
        yield


def _yes() -> bool:
    return True


def _is_called_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
