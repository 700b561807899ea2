"""A stand-in for a CUDA graph on the CPU: it records the operators of a call and repeats them on the same memory."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph:
    """Has the methods of ``CudaGraph``. As there, capturing computes nothing, and waiting for the device is refused.

    Tensors of the types ``of_host`` would be the host's on a GPU too: reading one waits for nothing.
    """

    def __init__(self, of_host=()):
        self.of_host = of_host
        self.calls = []
        self.result = None
        self.replays = self.captures = self.eager = 0

    def warm_up(self, call):
        self.eager += 1
        return call()

    def capture(self, call, generators=(), beside=None):
        self.captures += 1
        draws = torch.get_rng_state()
        try:
            with self.recording():
                self.result = call()
        finally:
            torch.set_rng_state(draws)

    @contextmanager
    def recording(self):
        """Record the operators inside the context, and undo what they write, as ``torch.cuda.graph`` fills a graph."""
        recorder = _Recorder(self.of_host)
        try:
            with recorder:
                yield
        finally:
            for tensor, before in reversed(recorder.written):
                with torch.autograd._unsafe_preserve_version_counter(tensor):  # as nothing was written at all
                    tensor.detach().copy_(before)
        self.calls = recorder.calls

    def replay(self):
        self.replays += 1
        with torch.no_grad():
            for function, args, kwargs, result in self.calls:
                for kept, new in zip(tree_leaves(result), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                        kept.copy_(new)

    def drop(self):
        self.calls, self.result = [], None


class _Recorder(TorchDispatchMode):
    def __init__(self, of_host):
        super().__init__()
        self.of_host = of_host
        self.calls, self.written = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default and args[0].dtype not in self.of_host:
            raise RuntimeError("operation not permitted when stream is capturing")
        # Compared, for the schemas of normalisations do not say that they write to the running statistics.
        before = [(t, t.detach().clone()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        result = function(*args, **kwargs)
        self.written += [(tensor, copy) for tensor, copy in before if not torch.equal(tensor, copy)]
        self.calls.append((function, args, kwargs, result))
        return result


def record_on_cpu(monkeypatch):
    """Have PyTorch's own calls make such graphs: one records the operators of the step and repeats them."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream, mode: graph.recording())
