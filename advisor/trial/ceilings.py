"""The machine's own ceilings: the matrix-product rate for a type and the copy bandwidth, measured, not looked up."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_REPEATS = 5
_CALLS = 1000
_MATRIX = {"cuda": 8192, "cpu": 1024}
_COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}


def matmul_flops_per_s(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float:
    """Floating-point operations per second of a large square matrix product of random numbers, the best of several.

    ``tf32`` measures float32 in TF32, whatever the process's present setting is.
    """
    size = _MATRIX[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    precision = torch.get_float32_matmul_precision()
    if tf32:
        torch.set_float32_matmul_precision("high")
    try:
        return 2 * size**3 / _best_seconds(device, lambda: left @ right)
    finally:
        torch.set_float32_matmul_precision(precision)


def call_overhead_s() -> float:
    """Seconds that one operator call costs on the host beside its arithmetic: an addition to a single number."""
    number = torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            number.add_(1)

    return _best_seconds(number.device, calls) / _CALLS


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes read plus bytes written per second by a copy much larger than the caches, the best of several."""
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    return 2 * source.numel() / _best_seconds(device, lambda: destination.copy_(source))


def _best_seconds(device: torch.device, call: Callable[[], object]) -> float:
    def timed() -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    timed()
    return min(timed() for _ in range(_REPEATS))
