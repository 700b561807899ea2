"""Facts for tests: machines and workloads as an inspection would describe them."""

from dataclasses import replace
from typing import Any

from advisor.records.hardware import GpuInfo, Hardware, HostInfo
from advisor.records.kinds import Mode
from advisor.records.workload import Facts, LoaderFacts, OptimizerFacts, Profile, WorkloadFacts

GIB = 2**30
IDLE = {"power_limit_w": 700.0, "mig_enabled": False}  # the readings of an H200 on which nothing runs
GPU_UUID = "GPU-00000000-0000-0000-0000-000000000001"
CONV = {"conv2d": 20, "batch_norm": 20, "linear": 1}
LINEAR = {"linear": 6}


def host(**changes: Any) -> HostInfo:
    """A 16-core server."""
    facts = HostInfo(
        cpu="Test CPU",
        physical_cores=16,
        logical_cores=32,
        usable_cores=16,
        memory_total_bytes=128 * GIB,
        memory_available_bytes=100 * GIB,
        cpu_features=("avx2", "avx512f", "avx512_bf16", "amx_bf16"),
        system="Linux 6.1",
        python="3.12.0",
    )
    return replace(facts, **changes)


def h200(**changes: Any) -> GpuInfo:
    """An idle NVIDIA H200."""
    facts = GpuInfo(
        index=0,
        uuid=GPU_UUID,
        name="NVIDIA H200",
        memory_total_bytes=141 * GIB,
        memory_used_bytes=0,
        driver_version="570.0",
        compute_capability=(9, 0),
    )
    return replace(facts, **changes)


def loader_facts(**changes: Any) -> LoaderFacts:
    """A plain DataLoader: 100 batches of 32, no workers."""
    facts = LoaderFacts(
        batch_size=32,
        num_workers=0,
        pin_memory=False,
        persistent_workers=False,
        prefetch_factor=None,
        length=100,
        iterable_dataset=False,
        custom_batch_sampler=False,
    )
    return replace(facts, **changes)


def sgd_facts(**changes: Any) -> OptimizerFacts:
    """SGD, left to PyTorch's default."""
    facts = OptimizerFacts(
        name="SGD",
        implementation="default",
        implementations=("for-loop", "foreach", "fused"),
        capturable=False,
        tensors=62,
    )
    return replace(facts, **changes)


def adamw_facts(**changes: Any) -> OptimizerFacts:
    """AdamW, left to PyTorch's default."""
    return sgd_facts(**{"name": "AdamW", "capturable": True, "state_bytes": 800_000} | changes)


def profile_facts(**changes: Any) -> Profile:
    """A training step of 100 ms that waits 20 ms for data."""
    phases = {
        "data wait": 20.0,
        "host-to-device": 2.0,
        "forward": 25.0,
        "loss": 1.0,
        "backward": 45.0,
        "optimizer": 6.0,
        "zero_grad": 1.0,
    }
    return replace(Profile(step_ms=100.0, phases=phases), **changes)


def cpu_facts(
    *,
    mode: Mode = Mode.TRAIN,
    loader: LoaderFacts | None = None,
    profile: Profile | None = None,
    hardware: Hardware | None = None,
    versions: dict[str, str] | None = None,
    **workload: Any,
) -> Facts:
    """A small convolutional network on the CPU; further arguments change its ``WorkloadFacts``."""
    facts = WorkloadFacts(
        mode=mode,
        device="cpu",
        device_name="Test CPU",
        device_uuid=None,
        capability=None,
        device_memory_bytes=128 * GIB,
        model="Net",
        parameters=100_000,
        parameter_bytes=400_000,
        parameter_tensors=62,
        parameter_dtypes=("float32",),
        families=dict(CONV),
        batch_size=32,
        batch_text="float32[32, 3, 96, 96], int64[32]",
        data_kind="DataLoader" if loader else "batch",
        loss="CrossEntropyLoss",
        optimizer=sgd_facts() if mode is Mode.TRAIN else None,
        loader=loader,
        threads=16,
    )
    return Facts(
        hardware=hardware or Hardware(host=host(), gpu_note="no NVIDIA driver was found"),
        workload=replace(facts, **workload),
        profile=profile,
        versions={"torch": "2.11.0"} if versions is None else versions,
    )


def gpu_facts(**changes: Any) -> Facts:
    """The same network on an H200; takes the arguments of :func:`cpu_facts`."""
    on_gpu = {
        "device": "cuda:0",
        "device_name": "NVIDIA H200",
        "device_uuid": GPU_UUID,
        "capability": (9, 0),
        "device_memory_bytes": 141 * GIB,
        "hardware": Hardware(host=host(), gpus=(h200(),)),
        "threads": 8,
    }
    return cpu_facts(**on_gpu | changes)
