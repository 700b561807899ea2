"""Calls captured in a CUDA graph, and the answers that other code gets meanwhile."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.nn.modules import transformer


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures on a device. One for all graphs: libraries keep memory to work in for each stream.

    Left to PyTorch, it is on the device that was the current one in the first capture, and records nothing of others.
    """
    return torch.cuda.Stream(device)


def is_called_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether the caller calls a mask causal; the mask is not looked at."""
    return is_causal is True


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Have PyTorch's transformers use a mask as it is, and not ask whether it is the causal one.

    The answer makes the host wait, which no capture can, and only chooses among kernels.
    """
    asked = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = is_called_causal  # the same function each time, or compilers compile anew
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = asked


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Have code that asks whether a graph is being captured hear that one is.

    Some goes another way then (Hugging Face's attention masks are made without a look at their values), and what a
    compiler has to make for that way it cannot make in a capture.
    """
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        with masks_as_given():
            yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


class CudaGraph:
    """Calls captured in a CUDA graph; ``result`` is what the captured call returned, overwritten by each replay."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None

    def warm_up(self, call: Callable[[], Any]) -> Any:
        """Run a call eagerly, on the side stream that a later capture expects."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = call()
        current.wait_stream(self.stream)
        return result

    def capture(self, call: Callable[[], Any], generators: Sequence[torch.Generator] = ()) -> None:
        """Capture a call, without running its kernels. Where it fails, the stream and random numbers are as before.

        ``generators`` are those of the device that it draws from, beside the usual one.
        """
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        failures: list[Exception] = []
        own = [(generator, generator.get_state()) for generator in generators]
        usual = torch.cuda.get_rng_state(self.device)
        try:
            with self._capturing(graph, generators):
                try:
                    self.result = call()
                except Exception as failure:
                    failures.append(failure)
                    raise
        except Exception:
            self._recover(generators)
            torch.cuda.set_rng_state(usual, self.device)
            for generator, state in own:
                generator.set_state(state)
            if failures:  # ending a capture that has failed raises again, and says less
                raise failures[0] from None
            raise
        self.graph = graph

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> Iterator[None]:
        """Capture into a graph. PyTorch leaves its stream the current one where a capture cannot be ended."""
        for generator in generators:
            graph.register_generator_state(generator)
        current = torch.cuda.current_stream(self.device)
        # A loader's thread that pins memory calls CUDA meanwhile, which any other mode takes for a fault.
        captures = torch.cuda.graph(graph, stream=capture_stream(self.device), capture_error_mode="thread_local")
        with torch.cuda.stream(current), captures:
            yield

    def _recover(self, generators: Sequence[torch.Generator]) -> None:
        """End the state of capturing in which PyTorch 2.11 leaves generators after a capture that failed.

        The end of a capture that succeeds ends it too.
        """
        with suppress(RuntimeError), self._capturing(torch.cuda.CUDAGraph(), generators):
            torch.zeros(1, device=self.device)

    def replay(self) -> None:
        """Run the captured kernels."""
        assert self.graph is not None
        self.graph.replay()

    def drop(self) -> None:
        """Forget the captured call and free its memory."""
        self.graph = self.result = None
