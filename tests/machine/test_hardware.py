"""The real host is inspected. NVML is a small stand-in, since machines that run these tests have no GPU."""

from dataclasses import fields

import psutil
import pytest
import torch
from fake_nvml import GIB, UUID, FakeNvml, nvml, nvml_of, process, used_sm

from advisor.machine import host as host_module
from advisor.machine.device import backend_of
from advisor.machine.hardware import (
    POWER_CAP,
    GpuGauges,
    NvmlUnavailableError,
    compute_pids,
    inspect_hardware,
    sample_gpus,
)
from advisor.machine.host import usable_cores
from advisor.records import GpuInfo, GpuReading

# --- GPUs -----------------------------------------------------------------------------------------------------


def test_every_field_of_a_gpu_is_filled():
    (gpu,) = inspect_hardware(nvml()).gpus
    assert [field.name for field in fields(GpuInfo) if getattr(gpu, field.name) is None] == []
    assert (gpu.name, gpu.uuid, gpu.index) == ("NVIDIA H200", UUID, 0)
    assert gpu.memory_used_bytes == 3 * GIB
    assert gpu.compute_capability == (9, 0)
    assert (gpu.power_limit_w, gpu.mig_enabled) == (700.0, False)
    assert gpu.throttle_reasons == ("power cap", "hardware thermal slowdown"), "idling is none"


OPTIONAL = [
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetUtilizationRates"),
    *("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"),
]
# What tells a trial of disturbances and energy.
WATCHED = [
    *("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetMarginTemperature"),
    *("nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetTotalEnergyConsumption"),
]


@pytest.mark.parametrize("call", OPTIONAL)
def test_what_a_driver_does_not_support_is_none(call):
    context = nvml(refused={call: FakeNvml.NVML_ERROR_NOT_SUPPORTED})
    found = inspect_hardware(context)
    assert len(found.gpus) == 1
    assert found.gpu_note is None
    assert len(sample_gpus(context)) == 1


def refusing(code):
    return nvml(refused={"nvmlInit": code})


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (refusing(FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND), "no NVIDIA driver"),
        (refusing(999), "code 999"),
        (nvml(count=0), "sees no GPU"),
    ],
)
def test_a_machine_without_a_gpu_has_a_note_that_says_what_follows(context, words):
    found = inspect_hardware(context)
    assert found.gpus == ()
    assert words in found.gpu_note
    assert found.gpu_note.endswith("so the session runs on the CPU.")
    assert sample_gpus(context) == ()


ABSENT = next(pid for pid in range(2**22 - 1, 0, -1) if not psutil.pid_exists(pid))


def test_processes_are_named_and_our_own_are_left_out():
    running = [process(psutil.Process().pid), process(1), process(ABSENT, used=None)]
    (gpu,) = inspect_hardware(nvml(processes=running)).gpus
    assert [one.pid for one in gpu.processes] == [1, ABSENT]
    assert gpu.processes[0].name == psutil.Process(1).name()
    assert gpu.processes[1].name == "a process outside this container"
    assert gpu.processes[1].used_memory_bytes is None


# --- what a trial watches -------------------------------------------------------------------------------------


def test_a_reading_has_all_that_a_trial_watches():
    library = FakeNvml(processes=[process(7), process(8)])
    library.samples = [used_sm(7, 90, 1_000)]
    library.bits = 4 | 64
    reading = GpuGauges(UUID.removeprefix("GPU-"), nvml_of(library)).read()
    assert (reading.sm_clock_mhz, reading.temperature_c, reading.power_w) == (1755, 41, 76.5)
    assert reading.throttle_reasons == (POWER_CAP, "hardware thermal slowdown")
    assert (reading.idle, reading.pids, reading.sm_percent) == (False, {7, 8}, {7: 90})


def test_what_a_driver_does_not_tell_a_trial_is_none_or_empty():
    gauges = GpuGauges(UUID, nvml(refused=dict.fromkeys((*OPTIONAL, *WATCHED), FakeNvml.NVML_ERROR_NOT_SUPPORTED)))
    assert gauges.read() == GpuReading(UUID)
    assert gauges.slowdown_c is None
    assert gauges.energy_j() is None


def test_a_gpu_slows_down_where_its_margin_ends_or_at_its_threshold():
    assert GpuGauges(UUID, nvml()).slowdown_c == 41 + 46
    refused = {"nvmlDeviceGetMarginTemperature": FakeNvml.NVML_ERROR_NOT_SUPPORTED}
    assert GpuGauges(UUID, nvml(refused=refused)).slowdown_c == 87


def test_utilisation_is_what_was_new_since_the_reading_before():
    library = FakeNvml()
    gauges = GpuGauges(UUID, nvml_of(library))
    old, nonsense = used_sm(1, 80, 1_000_000), used_sm(2, 4_000_000, 9_000_000)
    library.samples = [old, used_sm(3, 50, 8_900_000), used_sm(3, 70, 9_000_000), nonsense]
    assert gauges.read().sm_percent == {3: 70}
    assert gauges.read().sm_percent == {}
    library.samples = [used_sm(1, 20, 9_200_000), *library.samples]
    assert gauges.read().sm_percent == {1: 20}


def test_an_unknown_gpu_and_a_machine_without_nvml_cannot_be_read():
    with pytest.raises(NvmlUnavailableError, match="knows no GPU"):
        GpuGauges("GPU-0", nvml())
    with pytest.raises(NvmlUnavailableError, match="no NVIDIA driver"):
        GpuGauges(UUID, nvml(refused={"nvmlInit": FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND}))


def test_the_processes_of_all_gpus():
    assert compute_pids(nvml(processes=[process(7), process(8)], count=2)) == {7, 8}
    assert compute_pids(nvml(refused={"nvmlInit": FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND})) == frozenset()
    assert compute_pids(nvml(refused={"nvmlDeviceGetComputeRunningProcesses": 15})) == frozenset()


# --- the host -------------------------------------------------------------------------------------------------


def test_this_machine_is_described():
    host = inspect_hardware().host
    assert host.cpu
    assert 1 <= host.usable_cores <= host.logical_cores
    assert 1 <= host.physical_cores <= host.logical_cores
    assert 0 < host.memory_available_bytes <= host.memory_total_bytes <= psutil.virtual_memory().total
    assert set(host.cpu_features) <= set(host_module.CPU_FEATURES.split())
    assert host.system
    assert host.python


class ScriptedCores(host_module.CoresInUse):
    """A watch with figures for: seconds by the clock, processor seconds of all programs, and of this one."""

    def __init__(self, *readings):
        self.left = list(readings)
        super().__init__()

    def _read(self):
        return self.left.pop(0)


def test_the_cores_of_others_are_told_of_a_time_that_the_kernel_counts():
    assert ScriptedCores((0, 0, 0), (0.5, 30, 13)).foreign() == 0.0
    assert ScriptedCores((0, 0, 0), (10, 30, 13)).foreign() == pytest.approx(1.7)
    assert ScriptedCores((0, 0, 0), (10, 30, 31)).foreign() == 0.0


def with_files(root, files):
    """A root folder with these files of the kernel's."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "100000 100000"}, 1),
        ({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "max 100000"}, None),
        (  # version 1, and a path that is not visible
            {
                "proc/self/cgroup": "4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (  # of a group above
            {
                "proc/self/cgroup": "0::/pod/container\n",
                "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
                "sys/fs/cgroup/pod/cpu.max": "50000 100000",
            },
            1,
        ),
    ],
)
def test_a_quota_limits_the_cores(tmp_path, files, cores):
    root = with_files(tmp_path, files)
    assert usable_cores(root) == (cores or usable_cores(root / "none"))


def test_memory_honours_the_limit_and_counts_what_can_be_reclaimed(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": str(GIB),
        "sys/fs/cgroup/memory.current": str(GIB // 2),
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file 7\n",
    }
    assert host_module._memory_limits(with_files(tmp_path, files)) == (GIB, GIB * 3 // 4)


# --- a real GPU -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_nvml_and_torch_agree():
    properties = torch.cuda.get_device_properties(0)
    hardware = inspect_hardware()
    assert hardware.gpu_note is None
    gpu = next(gpu for gpu in hardware.gpus if gpu.uuid.removeprefix("GPU-") == str(properties.uuid))
    assert gpu is not None
    assert gpu.name == properties.name
    assert gpu.compute_capability == (properties.major, properties.minor)
    # The driver keeps a part for itself that CUDA does not see.
    assert properties.total_memory <= gpu.memory_total_bytes <= 1.05 * properties.total_memory
    (now,) = [reading for reading in sample_gpus() if reading.uuid == gpu.uuid]
    assert 0 < now.sm_clock_mhz <= 4000
    assert 0 < now.power_w <= 1.2 * gpu.power_limit_w
    assert gpu.processes == () or all(process.pid for process in gpu.processes)


@pytest.mark.gpu
def test_used_memory_follows_an_allocation():
    backend = backend_of(torch.device("cuda"))
    torch.zeros(1, device="cuda")
    before = backend.memory().device_used_bytes
    held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert backend.memory().device_used_bytes - before >= 0.9 * held.nbytes
