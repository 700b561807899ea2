"""The host is really inspected; NVML is a small stand-in, for the machines that run these tests have no GPU."""

import threading
from dataclasses import fields
from types import SimpleNamespace

import psutil
import pytest

from advisor import hardware
from advisor.hardware import Nvml, device_used_bytes, inspect_hardware, sample_gpus, usable_cores
from advisor.records import GpuInfo

UUID = "GPU-8f2c0000-aaaa-bbbb-cccc-000000000001"
MIG_UUID = "MIG-11110000-aaaa-bbbb-cccc-000000000002"
GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """A module of pynvml's shape: one H200; calls named in ``refused`` raise the code given for them."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksThrottleReasonHwThermalSlowdown = 64

    def __init__(self, refused=None, count=1, processes=(), mig=False):
        self.refused = refused or {}
        self.count = count
        self.processes = processes
        self.mig = mig
        self.opened = 0
        self.answers = {
            "nvmlInit": lambda: setattr(self, "opened", self.opened + 1),
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
            "nvmlDeviceGetUUID": lambda handle: MIG_UUID if handle == "mig0" else UUID,
            "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": self.memory,
            "nvmlSystemGetDriverVersion": lambda: "570.86.15",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
            "nvmlDeviceGetCudaComputeCapability": lambda _: [9, 0],
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1755, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda _, kind: 41,
            "nvmlDeviceGetPowerUsage": lambda _: 76_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 8,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
            "nvmlDeviceGetEccMode": lambda _: [1, 1],
            "nvmlDeviceGetMigMode": lambda _: [int(self.mig), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.instance,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 4 | 64 | 1,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: list(self.processes),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=40),
        }

    def memory(self, handle, version=None):
        return SimpleNamespace(used=GIB if handle == "mig0" else 3 * GIB, total=140 * GIB)

    def instance(self, handle, index):
        if index:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return "mig0"

    def __getattr__(self, name):
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def call(*arguments):
            if name in self.refused:
                raise NVMLError(self.refused[name])
            return self.answers[name](*arguments)

        return call


def nvml(**kwargs):
    library = FakeNvml(**kwargs)
    return Nvml(lambda: library)


def process(pid, used=GIB):
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


# --- GPUs -----------------------------------------------------------------------------------------------------


def test_every_field_of_a_gpu_is_filled():
    (gpu,) = inspect_hardware(nvml()).gpus
    assert [field.name for field in fields(GpuInfo) if getattr(gpu, field.name) is None] == []
    assert (gpu.name, gpu.uuid, gpu.index) == ("NVIDIA H200", UUID, 0)
    assert gpu.memory_used_bytes == 3 * GIB
    assert gpu.cuda_driver_version == "12.8"
    assert gpu.compute_capability == (9, 0)
    assert (gpu.power_w, gpu.power_limit_w) == (76.5, 700.0)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) == (1755, 1980)
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (4, 5, 8, 16)
    assert (gpu.ecc_enabled, gpu.mig_enabled) == (True, False)


def test_throttle_reasons_are_words_and_idling_is_not_one():
    (gpu,) = inspect_hardware(nvml()).gpus
    assert gpu.throttle_reasons == ("power cap", "hardware thermal slowdown")


OPTIONAL = [
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
]


@pytest.mark.parametrize("call", OPTIONAL)
def test_what_a_driver_does_not_support_is_none(call):
    context = nvml(refused={call: FakeNvml.NVML_ERROR_NOT_SUPPORTED})
    found = inspect_hardware(context)
    assert len(found.gpus) == 1
    assert found.gpu_note is None
    assert len(sample_gpus(context)) == 1


def test_unsupported_fields_are_none_not_zero():
    refused = dict.fromkeys(OPTIONAL, FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    (gpu,) = inspect_hardware(nvml(refused=refused)).gpus
    assert (gpu.power_w, gpu.ecc_enabled, gpu.sm_clock_mhz, gpu.temperature_c) == (None, None, None, None)
    assert gpu.throttle_reasons == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (FakeNvml.NVML_ERROR_NO_PERMISSION, "may not talk"),
        (999, "code 999"),
    ],
)
def test_a_machine_without_nvml_has_a_note_that_says_what_follows(code, words):
    context = nvml(refused={"nvmlInit": code})
    found = inspect_hardware(context)
    assert found.gpus == ()
    assert words in found.gpu_note
    assert found.gpu_note.endswith("so the session runs on the CPU.")
    assert sample_gpus(context) == ()
    assert device_used_bytes(UUID, context) is None


def test_a_missing_binding_and_an_empty_machine_have_notes_too():
    def absent():
        raise ImportError("no pynvml")

    assert "nvidia-ml-py" in inspect_hardware(Nvml(absent)).gpu_note
    assert "sees no GPU" in inspect_hardware(nvml(count=0)).gpu_note


def test_a_lost_gpu_is_left_out_and_named():
    context = nvml(refused={"nvmlDeviceGetPowerUsage": FakeNvml.NVML_ERROR_GPU_IS_LOST})
    found = inspect_hardware(context)
    assert found.gpus == ()
    assert found.gpu_note.startswith("GPU 0 does not answer")
    assert sample_gpus(context) == ()


def test_processes_are_named_and_our_own_are_left_out():
    absent = next(pid for pid in range(2**22 - 1, 0, -1) if not psutil.pid_exists(pid))
    running = [process(psutil.Process().pid), process(1), process(absent, used=None)]
    (gpu,) = inspect_hardware(nvml(processes=running)).gpus
    assert [one.pid for one in gpu.processes] == [1, absent]
    assert gpu.processes[0].name == psutil.Process(1).name()
    assert gpu.processes[1].name == "a process outside this container"
    assert gpu.processes[1].used_memory_bytes is None


def test_gauges():
    (sample,) = sample_gpus(nvml())
    assert (sample.utilization_percent, sample.temperature_c, sample.power_w) == (97, 41, 76.5)
    assert (sample.memory_used_bytes, sample.memory_total_bytes, sample.sm_clock_mhz) == (3 * GIB, 140 * GIB, 1755)


@pytest.mark.parametrize("uuid", [UUID, UUID.removeprefix("GPU-"), UUID.removeprefix("GPU-").upper()])
def test_used_memory_by_uuid_with_and_without_the_prefix(uuid):
    assert device_used_bytes(uuid, nvml()) == 3 * GIB


def test_used_memory_of_a_mig_instance_and_of_a_stranger():
    assert device_used_bytes(MIG_UUID.removeprefix("MIG-"), nvml(mig=True)) == GIB
    assert device_used_bytes("GPU-0", nvml(mig=True)) is None
    assert device_used_bytes(MIG_UUID, nvml(mig=False)) is None


def test_nvml_is_opened_once_also_by_many_threads():
    library = FakeNvml()
    context = Nvml(lambda: library)
    threads = [threading.Thread(target=sample_gpus, args=(context,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.opened == 1


# --- the host -------------------------------------------------------------------------------------------------


def test_this_machine_is_described():
    host = inspect_hardware().host
    assert host.cpu
    assert 1 <= host.usable_cores <= host.logical_cores
    assert 1 <= host.physical_cores <= host.logical_cores
    assert 0 < host.memory_available_bytes <= host.memory_total_bytes <= psutil.virtual_memory().total
    assert host.numa_nodes >= 1
    assert set(host.cpu_features) <= set(hardware.CPU_FEATURES)
    assert host.system
    assert host.python


@pytest.fixture
def kernel(tmp_path):
    """A root folder to which the kernel's files are written."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("10000 100000", 1), ("max 100000", None)])
def test_the_quota_of_version_2_limits_the_cores(kernel, quota, cores):
    root = kernel(proc__self__cgroup="0::/pod\n", sys__fs__cgroup__pod__cpu_DOT_max=quota)
    assert usable_cores(root) == (cores or usable_cores(root / "none"))


def test_a_quota_of_a_group_above_counts(kernel):
    root = kernel(
        proc__self__cgroup="0::/pod/container\n",
        sys__fs__cgroup__pod__container__cpu_DOT_max="max 100000",
        sys__fs__cgroup__pod__cpu_DOT_max="50000 100000",
    )
    assert usable_cores(root) == 1


def test_the_quota_of_version_1_and_a_path_that_is_not_visible(kernel):
    root = kernel(
        proc__self__cgroup="4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us="50000",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert usable_cores(root) == 1


def test_no_quota_leaves_the_affinity(kernel):
    root = kernel(
        proc__self__cgroup="1:cpu:/\n",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us="-1",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert usable_cores(root) == len(psutil.Process().cpu_affinity())


def test_memory_honours_the_limit_and_counts_what_can_be_reclaimed(kernel):
    root = kernel(
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_DOT_max=str(GIB),
        sys__fs__cgroup__memory_DOT_current=str(GIB // 2),
        sys__fs__cgroup__memory_DOT_stat=f"anon 5\ninactive_file {GIB // 4}\nactive_file 7\n",
    )
    assert hardware._memory_limits(root) == (GIB, GIB * 3 // 4)


def test_an_unlimited_group_leaves_the_machine(kernel):
    root = kernel(
        proc__self__cgroup="4:memory:/\n", sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=str(2**63 - 4096)
    )
    assert hardware._memory_limits(root)[0] == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("cpuinfo", "name", "features"),
    [
        ("model name\t: AMD EPYC  9654\nflags\t\t: fpu avx2 avx512f\n", "AMD EPYC 9654", ("avx2", "avx512f")),
        ("Features\t: fp asimd bf16 sve\nModel\t\t: Grace\n", "Grace", ("bf16", "sve")),
    ],
)
def test_the_cpu_is_named(cpuinfo, name, features):
    assert hardware._cpu_name(cpuinfo) == name
    assert hardware._cpu_features(cpuinfo) == features


def test_a_cpu_without_a_name_still_has_one():
    assert hardware._cpu_name("")
