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
def as_before(model: torch.nn.Module) -> Iterator[None]:
    """Give the generators of the host and of a model's GPUs, and its buffers, their states back on leaving.

    Buffers are for example the statistics of batch norms.
    """
    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    numpy: Any = sys.modules.get("numpy")
    python, arrays = random.getstate(), None if numpy is None else numpy.random.get_state(legacy=False)
    try:
        with torch.random.fork_rng(devices):  # the host's too
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
