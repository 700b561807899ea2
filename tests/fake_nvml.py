"""A stand-in for the module ``pynvml``: one H200 whose answers a test can change, refuse or take away."""

from types import SimpleNamespace

import pynvml

from advisor.machine.hardware import Nvml

UUID = "GPU-8f2c0000-aaaa-bbbb-cccc-000000000001"
GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


def now(value):
    return value() if callable(value) else value


class FakeNvml:
    """A module of pynvml's shape: one H200; calls named in ``refused`` raise the code given for them.

    ``processes`` and ``samples`` (of their utilisation) are lists; ``clock_mhz``, ``celsius``, ``bits`` (of the reasons
    for the clock), ``margin_c`` and ``millijoules`` are what the gauges say. A callable among them is asked each time.
    """

    NVMLError = NVMLError
    vars().update((name, value) for name, value in vars(pynvml).items() if isinstance(value, int))  # its constants

    def __init__(self, refused=None, count=1, processes=()):
        self.refused = refused or {}
        self.count = count
        self.processes = processes
        self.samples = []
        self.clock_mhz, self.celsius, self.bits, self.margin_c, self.millijoules = 1755, 41, 4 | 64 | 1, 46, 5_000_000
        self.answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
            "nvmlDeviceGetUUID": lambda handle: f"{UUID[:-1]}{1 + int(handle[3:])}",
            "nvmlDeviceGetIndex": lambda handle: int(handle[3:]),
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": self.memory,
            "nvmlSystemGetDriverVersion": lambda: "570.86.15",
            "nvmlDeviceGetCudaComputeCapability": lambda _: [9, 0],
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: now(self.clock_mhz), 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda _, kind: now(self.celsius),
            "nvmlDeviceGetMarginTemperature": lambda _: self.margin_c,
            "nvmlDeviceGetTemperatureThreshold": lambda _, kind: {1: 87}[kind],
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: now(self.millijoules),
            "nvmlDeviceGetPowerUsage": lambda _: 76_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetMigMode": lambda _: [0, 0],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: now(self.bits),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: list(now(self.processes)),
            "nvmlDeviceGetProcessUtilization": self.utilization,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=40),
        }

    def memory(self, handle, version=None):
        return SimpleNamespace(used=3 * GIB, total=140 * GIB)

    def utilization(self, handle, since_us):
        new = [sample for sample in now(self.samples) if sample.timeStamp > since_us]
        if not new:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return new

    def __getattr__(self, name):
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def call(*arguments):
            if name in self.refused:
                raise NVMLError(self.refused[name])
            return self.answers[name](*arguments)

        return call


def nvml(**kwargs):
    """NVML over a fake that no other test uses."""
    return nvml_of(FakeNvml(**kwargs))


def nvml_of(library):
    return Nvml(lambda: library)


def process(pid, used=GIB):
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def used_sm(pid, percent, at_us):
    """A sample of a process's utilisation."""
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at_us)
