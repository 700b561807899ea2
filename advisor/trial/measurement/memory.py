"""Peak memory: the caching allocator's and NVML's on CUDA, the process's resident set on the CPU."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import torch

from advisor.machine.hardware import device_used_bytes


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks in bytes. On the CPU both peaks are the largest resident set of the process."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int | None


def peak_memory(device: torch.device) -> Memory:
    """The peaks since the process started. Reserved counts CUDA graph pools, which allocated misses."""
    if device.type == "cuda":
        return Memory(
            torch.cuda.max_memory_allocated(device),
            torch.cuda.max_memory_reserved(device),
            device_used_bytes(device_uuid(device)),
        )
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Memory(resident, resident, None)


def device_uuid(device: torch.device) -> str:
    """The UUID by which NVML knows this CUDA device."""
    return str(torch.cuda.get_device_properties(device).uuid)
