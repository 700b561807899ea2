"""The machine's own ceilings: matrix products by type, copies, operator calls. Skips those that lack memory."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial

import torch

from advisor.machine.device import backend_of
from advisor.machine.host import host_info
from advisor.process.meanwhile import replaced
from advisor.records import Ceilings

# Matrices grow until the next size would take too long. By whether the device has its own memory, as GPUs do.
_SIZES = {True: (2048, 8192), False: (256, 512, 1024, 2048)}
_COPY_BYTES = {True: 2**30, False: 2**27}
_SMALLEST_COPY_BYTES = 2**22
_FEWEST_REPEATS = 2
_MOST_REPEATS = 50
_LIMIT_S = 0.1
# Time limit for all ceilings in a process that has not loaded the kernels yet. An H200 needs 1 to 3 s.
_MEASURING_S = 3.0
_CALLS = 1000
_ROOM_SHARE = 1 / 8  # share of the memory that the user's model leaves free


def machine_ceilings(device: torch.device, dtype: torch.dtype, left_s: float = math.inf) -> Ceilings:
    """Measure this machine's ceilings, also for ``dtype``; returns none if ``left_s`` seconds are too few."""
    if left_s < _MEASURING_S:
        return Ceilings({})
    backend = backend_of(device)
    free = backend.free_bytes()
    room_bytes = int(_ROOM_SHARE * (host_info().memory_available_bytes if free is None else free))
    # The types that recipes can choose, and the step's own type.
    names = ["float32", *(["tf32"] if backend.float32_in_tf32() else []), "bfloat16"]
    names += ["float16"] if backend.has_memory else []
    names += [own] if (own := str(dtype).removeprefix("torch.")) not in names else []
    products = {name: _unless_it_fails(partial(_product_rate, device, name, room_bytes)) for name in names}
    number = torch.zeros(1)
    return Ceilings(
        matmul_flops_per_s={name: rate for name, rate in products.items() if rate},
        copy_bytes_per_s=_unless_it_fails(partial(_copy_rate, device, room_bytes)),
        # On the host, with little arithmetic: an addition to a single number.
        call_overhead_s=_best_seconds(number.device, lambda: [number.add_(1) for _ in range(_CALLS)]) / _CALLS,
        measured_on=date.today().isoformat(),
    )


def _unless_it_fails(measure: Callable[[], float | None]) -> float | None:
    """The result of a call; None if this machine cannot run it or lacks the memory."""
    with contextlib.suppress(RuntimeError, MemoryError):
        return measure()
    return None


def _product_rate(device: torch.device, name: str, room_bytes: int) -> float | None:
    """Floating-point operations per second of a large square matrix product of random numbers, the best of several."""
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    rates: list[float] = []
    with float32_products(tf32=name == "tf32"):
        for size in _SIZES[backend_of(device).has_memory]:
            if 3 * size**2 * dtype.itemsize > room_bytes:
                continue
            if rates and (1 + _FEWEST_REPEATS) * 2 * size**3 / rates[-1] > 2 * _LIMIT_S:
                break
            left, right = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
            rates.append(2 * size**3 / _best_seconds(device, partial(torch.matmul, left, right)))
    return max(rates, default=None)


def _copy_rate(device: torch.device, room_bytes: int) -> float | None:
    """Bytes read plus written per second by a copy that is larger than the caches, the best of several."""
    size = min(_COPY_BYTES[backend_of(device).has_memory], room_bytes // 2)
    if size < _SMALLEST_COPY_BYTES:
        return None
    source = torch.ones(size, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    return 2 * size / _best_seconds(device, lambda: destination.copy_(source))


def _best_seconds(device: torch.device, call: Callable[[], object]) -> float:
    """The shortest of several calls after a warm-up; fewer calls if they take long. Disturbances only add time."""
    backend = backend_of(device)
    backend.seconds_of(call)
    started = time.perf_counter()
    times: list[float] = []
    while len(times) < _FEWEST_REPEATS or (len(times) < _MOST_REPEATS and time.perf_counter() - started < _LIMIT_S):
        times.append(backend.seconds_of(call))
    return min(times)


def float32_matmul() -> str:
    """The precision of float32 products on CUDA, as ``torch.set_float32_matmul_precision`` names it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # The user set the newer per-backend switches, so the older function raises an error.
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def convolutions_in_tf32() -> bool:
    """Whether float32 convolutions run in TF32 on CUDA, which is PyTorch's default."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return torch.backends.cudnn.allow_tf32 if precision is None else precision == "tf32"


@contextlib.contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """A context for float32 matrix products in TF32 or in full float32, whatever the present setting is."""
    on_cuda = torch.backends.cuda.matmul
    if hasattr(on_cuda, "fp32_precision"):
        on_cpu = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        precision = "tf32" if tf32 else "ieee"
        with replaced(on_cuda, "fp32_precision", precision), replaced(on_cpu, "fp32_precision", "ieee"):
            yield
    else:  # before PyTorch 2.9
        with replaced(on_cuda, "allow_tf32", tf32):
            yield
