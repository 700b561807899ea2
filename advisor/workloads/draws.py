"""The random generators of the host (PyTorch, Python, NumPy): seeding them, and restoring their state."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


def seed_host(seed: int) -> None:
    """Seed the generators, from which datasets, samplers and transforms draw."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def draws_kept(*modules: torch.nn.Module) -> Iterator[None]:
    """Give the generators of the host, and of the GPUs that modules are on, their states back on leaving."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    numpy: Any = sys.modules.get("numpy")
    python, arrays = random.getstate(), None if numpy is None else numpy.random.get_state(legacy=False)
    try:
        with torch.random.fork_rng(devices):  # the host's too
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)


@contextlib.contextmanager
def buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Give the buffers of a model, such as the statistics of batch norms, their values back on leaving."""
    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
