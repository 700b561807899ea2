"""NVML, opened on first use and kept open, and the links between GPUs. What a driver does not report is None."""

import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from advisor.records import GpuLink

_ON_THE_CPU = "so the session runs on the CPU."
_OPENING_FAILED = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "There is no NVIDIA driver on this machine (libnvidia-ml.so was not found)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "The NVIDIA driver is installed but its kernel module is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "The NVIDIA driver was updated but not reloaded (a reboot mends that)",
    "NVML_ERROR_NO_PERMISSION": "This user may not talk to the NVIDIA driver",
}


class NvmlUnavailableError(Exception):
    """NVML cannot be used here; the message is a plain sentence with the reason and the consequence."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that NVML has found."""

    index: int
    uuid: str
    handle: Any


class Nvml:
    """NVML, opened on first use and kept open; each process opens its own. May be used from any thread.

    ``load`` returns the module ``pynvml`` or one of its shape. ``silent`` numbers the GPUs that do not answer, as one
    that fell off its bus.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._library: Any = None
        self._devices: tuple[Device, ...] = ()
        self._failure: str | None = None
        self.silent: tuple[int, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs. Raises NvmlUnavailableError when NVML cannot be used or finds none."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._failure, self._devices = os.getpid(), None, ()
                self._open()
        if self._failure:
            raise NvmlUnavailableError(self._failure)
        return self._devices

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer to one NVML call, by name; None if this GPU, driver, binding or user gets no answer."""
        call = getattr(self._library, name, None)
        try:
            return call(*arguments) if call else None
        except self._library.NVMLError:
            return None

    def constant(self, name: str) -> int:
        """One of NVML's constants; 0 when this version of its binding lacks it."""
        return int(getattr(self._library, name, 0))

    def _open(self) -> None:
        self._library = library = self._load()
        try:
            library.nvmlInit()
            numbers = range(library.nvmlDeviceGetCount())
        except library.NVMLError as error:
            known = {getattr(library, name, None): words for name, words in _OPENING_FAILED.items()}
            self._failure = f"{known.get(error.value, f'NVML cannot be used ({error})')}, {_ON_THE_CPU}"
            return
        handles = [self.ask("nvmlDeviceGetHandleByIndex", number) for number in numbers]
        uuids = [None if handle is None else self.ask("nvmlDeviceGetUUID", handle) for handle in handles]
        found = zip(numbers, uuids, handles, strict=True)
        self._devices = tuple(Device(number, uuid, handle) for number, uuid, handle in found if uuid is not None)
        self.silent = tuple(number for number in numbers if uuids[number] is None)
        if not self._devices:
            self._failure = f"The NVIDIA driver sees no GPU{' that answers' if self.silent else ''}, {_ON_THE_CPU}"


NVML = Nvml()


# The nearest common ancestor of two GPUs on PCIe, nearest first. nvml.h, "nvmlGpuTopologyLevel_t".
_PATHS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "a PCIe host bridge",
    40: "PCIe within a NUMA node",
    50: "PCIe across NUMA nodes",
}


def gpu_links(nvml: Nvml) -> tuple[GpuLink, ...]:
    """The link between each pair of GPUs."""
    found: list[GpuLink] = []
    for first, second in combinations(nvml.devices, 2):
        path = _PATHS.get(nvml.ask("nvmlDeviceGetTopologyCommonAncestor", first.handle, second.handle), "")
        found.append(GpuLink(first.index, second.index, _nvlinks_between(nvml, first, second), path))
    return tuple(found)


def _nvlinks_between(nvml: Nvml, first: Device, second: Device) -> int:
    """The count of the first GPU's NVLinks over which it reaches the second, directly or through NVSwitch."""
    index = nvml.constant("NVML_P2P_CAPS_INDEX_NVLINK")
    if nvml.ask("nvmlDeviceGetP2PStatus", first.handle, second.handle, index) != nvml.constant("NVML_P2P_STATUS_OK"):
        return 0
    mine, theirs = _active(nvml, first.handle), _active(nvml, second.handle)
    bus = getattr(nvml.ask("nvmlDeviceGetPciInfo", second.handle), "busId", None)
    ends = (nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", first.handle, link) for link in mine)
    direct = sum(getattr(end, "busId", None) == bus for end in ends) if bus else 0
    return direct or min(len(mine), len(theirs))


def _active(nvml: Nvml, handle: Any) -> list[int]:
    links = range(nvml.constant("NVML_NVLINK_MAX_LINKS"))
    return [link for link in links if nvml.ask("nvmlDeviceGetNvLinkState", handle, link) == 1]
