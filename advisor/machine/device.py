"""The device that steps run on. Only this module calls functions of a backend, such as ``torch.cuda``.

``backend_of`` gives the backend of a ``torch.device``. A new backend is a class here that overrides the differences to
the CPU, whose calls return when their work is done. ``None`` or ``False`` means that a device lacks something.
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity

from advisor.errors import TargetError
from advisor.records.workload import TENSOR_CORES_SINCE


class Moment:
    """A moment of the host's clock, with those methods of ``torch.cuda.Event`` that are used here."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_time(self, later: "Moment") -> float:
        """Milliseconds from this moment to a later one."""
        return 1e3 * (later._at_s - self._at_s)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a device."""

    name: str
    uuid: str | None = None  # the UUID in NVML
    capability: tuple[int, int] | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks in bytes since the process started. On the CPU, both are the largest resident set."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int  # including the pools of CUDA graphs
    device_used_bytes: int | None


class Backend:
    """A device: synchronise, marks, memory, identity and abilities. This base class is the CPU's."""

    is_ahead: ClassVar[bool] = False  # whether calls return before the device has done its work
    has_memory: ClassVar[bool] = False  # whether it has its own memory, to which batches are copied
    activities: ClassVar[tuple[ProfilerActivity, ...]] = (ProfilerActivity.CPU,)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @classmethod
    def count(cls) -> int:
        """Return the number of devices of this kind that PyTorch sees."""
        return 1

    def made_current(self) -> torch.device:
        """Make this device PyTorch's current one, and return it with its index."""
        return self.device

    def synchronize(self) -> None:
        """Wait until the device has done all of its work."""

    def mark(self) -> Any:
        """Return a mark at this place in the device's queue: a ``torch.cuda.Event``, or an object with its methods."""
        return Moment()

    def seconds_of(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, from an idle device until the device has done all of the call's work."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def identity(self) -> Identity:
        """Return the device's name, UUID and size."""
        return Identity("CPU")

    def memory(self) -> Memory:
        """Return the peaks since the process started."""
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Memory(resident, resident, None)

    def free_bytes(self) -> int | None:
        """Return the bytes of device memory that are free or in PyTorch's cache; None if it uses the host's memory."""
        return None

    def peak_of(self, call: Callable[[], object]) -> int | None:
        """Return the peak bytes of tensors that a call adds to the allocated ones; None if nothing counts them."""
        return None

    def random_states(self) -> list[torch.Tensor]:
        """Return the states of the generators that a step can draw from."""
        return [torch.get_rng_state()]

    def float32_in_tf32(self) -> bool:
        """Return whether the device can compute float32 products in TF32."""
        return False

    def warning_of_waits(self) -> AbstractContextManager[None]:
        """Return a context in which PyTorch warns of each line that waits. Available only if ``is_ahead``."""
        raise NotImplementedError(f"PyTorch does not warn of waits for {self.device}")


class Cuda(Backend):
    """A GPU. See PyTorch's documentation, "CUDA semantics"."""

    is_ahead = True
    has_memory = True
    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)

    @classmethod
    def count(cls) -> int:
        """Return the number of GPUs; also 0 if the driver does not fit."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def made_current(self) -> torch.device:
        device = torch.device("cuda", self.device.index or 0)
        torch.cuda.set_device(device)
        return device

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def identity(self) -> Identity:
        found = torch.cuda.get_device_properties(self.device)
        return Identity(found.name, str(found.uuid), (found.major, found.minor), found.total_memory)

    def memory(self) -> Memory:
        """Return the caching allocator's peaks, and the device memory that all processes use now."""
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.max_memory_reserved(self.device)
        return Memory(torch.cuda.max_memory_allocated(self.device), reserved, total - free)

    def free_bytes(self) -> int | None:
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def peak_of(self, call: Callable[[], object]) -> int | None:
        """Return the allocator's peak in bytes, and reset it."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) - before

    def random_states(self) -> list[torch.Tensor]:
        return [*super().random_states(), torch.cuda.get_rng_state(self.device)]

    def float32_in_tf32(self) -> bool:
        return torch.cuda.get_device_capability(self.device) >= TENSOR_CORES_SINCE["tf32"]

    @contextmanager
    def warning_of_waits(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


BACKENDS: dict[str, type[Backend]] = {"cpu": Backend, "cuda": Cuda}


def backend_of(device: torch.device) -> Backend:
    """Return the backend of a device. Raises TargetError for a device without one."""
    kind = BACKENDS.get(device.type)
    if kind is None:
        raise TargetError(f"the device {device} is not known.", f"Choose one of: auto, {', '.join(BACKENDS)}.")
    return kind(device)


def named(name: str) -> torch.device:
    """Return the device that ``--device`` names, and make it the current one. Raises TargetError if it is missing."""
    if name == "auto":
        name = "cuda" if Cuda.count() else "cpu"
    device = torch.device(name)
    backend, kind = backend_of(device), device.type.upper()
    count = backend.count()
    if not count:
        raise TargetError(
            f"--device {name}: PyTorch sees no {kind} device.",
            "Use --device cpu, or install a PyTorch build and a driver that fit; `perf-advisor hardware` shows more.",
        )
    if (device.index or 0) >= count:
        raise TargetError(f"--device {name}: there are {count} {kind} devices, numbered from 0.", "Give one of those.")
    return backend.made_current()
