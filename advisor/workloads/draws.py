"""The random generators of the host: PyTorch, Python, NumPy."""

import random
import sys
from typing import Any

import torch


def seed_host(seed: int) -> None:
    """Seed the generators, from which datasets, samplers and transforms draw."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
