"""All-reduce measured over message sizes, by all ranks of a process group."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import distributed

from advisor.machine.device import backend_of
from advisor.records import AllReduceSweep, AllReduceTime

# 1 KiB to 256 MiB, in steps of four. Bytes.
_SIZES = tuple(1024 * 4**power for power in range(10))
# A size is measured in this many blocks; a block runs for this long, or for this many calls. Count, seconds, counts.
_BLOCKS = 5
_BLOCK_S = 0.02
_MOST_CALLS = 200
_WARM_UP_CALLS = 3
# Longest time for all sizes together; on slow links the largest are left out. Seconds.
_WITHIN_S = 3.0


def all_reduce_sweep(device: torch.device) -> AllReduceSweep:
    """Measure all-reduce in the present process group; sizes for which no time is left are left out.

    All ranks call it, and decide alike: what they decide by is the slowest rank's.
    """
    started = time.monotonic()
    times: list[AllReduceTime] = []
    for size in _SIZES:
        spent_s = _slowest(time.monotonic() - started, device)
        if times and spent_s >= _WITHIN_S:
            break
        times.append(AllReduceTime(size, _seconds(torch.zeros(size // 4, device=device))))
    return AllReduceSweep(distributed.get_world_size(), distributed.get_backend(), tuple(times))


def _seconds(message: torch.Tensor) -> float:
    """The median time of one all-reduce, in seconds."""
    once_s = _block_s(message, _WARM_UP_CALLS) / _WARM_UP_CALLS
    calls = max(1, min(_MOST_CALLS, int(_BLOCK_S / once_s)))
    return median(_block_s(message, calls) / calls for _ in range(_BLOCKS))


def _block_s(message: torch.Tensor, calls: int) -> float:
    """The seconds of some calls one after the other, on the slowest rank."""
    distributed.barrier()
    backend_of(message.device).synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        distributed.all_reduce(message)
    backend_of(message.device).synchronize()
    return _slowest(time.perf_counter() - started, message.device)


def _slowest(seconds: float, device: torch.device) -> float:
    """The largest of what the ranks measured."""
    held = torch.tensor([seconds], dtype=torch.float32, device=device)
    distributed.all_reduce(held, op=distributed.ReduceOp.MAX)
    return float(held.item())
