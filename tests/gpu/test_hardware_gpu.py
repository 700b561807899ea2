"""NVML and torch must describe the same GPU, found by its UUID."""

import pytest

from advisor.machine.hardware import inspect_hardware, sample_gpus

pytestmark = pytest.mark.gpu


def test_nvml_and_torch_agree():
    import torch

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


def test_used_memory_follows_an_allocation():
    import torch

    from advisor.machine.device import backend_of

    backend = backend_of(torch.device("cuda"))
    torch.zeros(1, device="cuda")
    before = backend.memory().device_used_bytes
    held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert backend.memory().device_used_bytes - before >= 0.9 * held.nbytes
