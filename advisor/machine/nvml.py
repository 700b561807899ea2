"""NVML, opened on first use and kept open. What a driver does not report is None."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ON_THE_CPU = "so the session runs on the CPU."
# What a driver answers to a question that this GPU, this driver or this user cannot have answered. The last two come
# from the binding: success with an empty list, and a list that grew between the asking for its size and for itself.
_UNANSWERED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_NOT_READY",
    "NVML_SUCCESS",
    "NVML_ERROR_INSUFFICIENT_SIZE",
)
_OPENING_FAILED = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "There is no NVIDIA driver on this machine (libnvidia-ml.so was not found)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "The NVIDIA driver is installed but its kernel module is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "The NVIDIA driver was updated but not reloaded (a reboot mends that)",
    "NVML_ERROR_NO_PERMISSION": "This user may not talk to the NVIDIA driver",
}


class NvmlUnavailableError(Exception):
    """NVML cannot be used here; the message is a plain sentence that says why and what follows from it."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that NVML has found."""

    index: int
    uuid: str
    handle: Any


class Nvml:
    """NVML, opened on first use and kept open; each process opens its own. May be used from any thread.

    ``load`` returns the module ``pynvml`` or one of its shape.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._library: Any = None
        self._devices: tuple[Device, ...] = ()
        self._unanswered: frozenset[int] = frozenset()
        self._failure: str | None = None

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

    @property
    def error(self) -> type[Exception]:
        """The exception that NVML's calls raise."""
        error: type[Exception] = self._library.NVMLError
        return error

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer to one NVML call, by name; None when it cannot be had here. Raises ``error`` for a broken GPU."""
        call = getattr(self._library, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._library.NVMLError as error:
            if error.value in self._unanswered:
                return None
            raise

    def constant(self, name: str) -> int:
        """One of NVML's constants; 0 when this version of its binding lacks it."""
        return int(getattr(self._library, name, 0))

    def _open(self) -> None:
        try:
            self._library = library = self._load()
        except ImportError:
            self._failure = f"The package nvidia-ml-py is not installed, {_ON_THE_CPU}"
            return
        self._unanswered = frozenset(getattr(library, name) for name in _UNANSWERED if hasattr(library, name))
        try:
            library.nvmlInit()
            self._devices = tuple(self._found())
        except library.NVMLError as error:
            self._failure = f"{_why_closed(library, error)}, {_ON_THE_CPU}"
        else:
            if not self._devices:
                self._failure = f"The NVIDIA driver sees no GPU, {_ON_THE_CPU}"

    def _found(self) -> Iterator[Device]:
        for index in range(self._library.nvmlDeviceGetCount()):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else self.ask("nvmlDeviceGetUUID", handle)
            if uuid is not None:
                yield Device(index, text_of_answer(uuid), handle)


NVML = Nvml()


def _why_closed(library: Any, error: Any) -> str:
    known = {getattr(library, name, None): words for name, words in _OPENING_FAILED.items()}
    return known.get(error.value, f"NVML cannot be used ({error})")


def text_of_answer(answer: str | bytes) -> str:
    """A text of NVML's, which older bindings give as bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
