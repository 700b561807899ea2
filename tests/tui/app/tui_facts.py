"""The facts of the app's made-up sessions: a machine, a workload, its profile and the habits in its source."""

from facts import GIB, IDLE, h200, host, resnet50

from advisor.experiment import events
from advisor.records import (
    Bottleneck,
    Ceilings,
    Finding,
    GpuProcess,
    GpuReading,
    HabitRow,
    HostSample,
    LoaderFacts,
    OperatorRow,
    OptimizerFacts,
    Profile,
    SyncPlace,
)
from advisor.tui.widgets.gauges import Reading

UUID = "GPU-5c1f0e52-0000-4c0e-9a51-000000000001"
HOST = host(
    cpu="Intel Xeon Platinum 8480+",
    physical_cores=56,
    logical_cores=112,
    memory_available_bytes=117 * GIB,
    system="Linux 6.8",
    python="3.12.4",
)
H200 = h200(
    uuid=UUID,
    memory_total_bytes=140 * GIB,
    memory_used_bytes=int(0.6 * GIB),
    driver_version="570.86.15",
    processes=(GpuProcess(4711, "python", int(0.5 * GIB)),),
    **IDLE,
)
SAMPLE = GpuReading(UUID, 97, 9 * GIB, 140 * GIB, 51, 486.0, 1980)
READING = Reading((SAMPLE,), HostSample(35.0, 12 * GIB, 128 * GIB))
RESNET = resnet50(
    device_uuid=UUID,
    device_memory_bytes=140 * GIB,
    batch_text="float32[64, 3, 224, 224], int64[64]",
    data_kind="DataLoader of a TensorDataset",
    loss="cross_entropy(output, target)",
    optimizer=OptimizerFacts("SGD", "foreach", ("for-loop", "foreach", "fused"), False, 161),
    loader=LoaderFacts(64, 0, False, False, None, 32, False, False),
    current={"precision.float32_matmul": "highest", "data.num_workers": 0},
    notes=("the weights are random: no [pretrained] weights were asked for",),
)
PROFILE = Profile(
    step_ms=33.1,
    phases={
        "data wait": 0.41,
        "host-to-device": 1.12,
        "forward": 10.9,
        "loss": 0.09,
        "backward": 19.2,
        "optimizer": 1.31,
        "zero_grad": 0.12,
    },
    operators=(
        OperatorRow("aten::cudnn_convolution", 53, 2.1, 8.9),
        OperatorRow("aten::convolution_backward", 53, 3.4, 15.2),
        OperatorRow("aten::native_batch_norm_backward", 53, 1.2, 3.1),
        OperatorRow("aten::native_batch_norm", 53, 0.9, 2.0),
        OperatorRow("aten::threshold_backward", 49, 0.6, 1.4),
        OperatorRow("aten::clamp_min_", 49, 0.5, 1.2),
        OperatorRow("aten::_foreach_add_", 3, 0.4, 0.8),
        OperatorRow("aten::copy_", 4.5, 0.05, 1.1),
    ),
    by_shape=(
        OperatorRow("aten::convolution_backward", 3, 0.2, 2.8, "[64, 256, 56, 56], [64, 64, 56, 56], [256, 64, 1, 1]"),
        OperatorRow("aten::cudnn_convolution", 3, 0.1, 1.7, "[64, 64, 56, 56], [64, 64, 3, 3]"),
        OperatorRow("aten::native_batch_norm", 4, 0.1, 0.6, "[64, 256, 56, 56], [256], [256], [256], [256]"),
    ),
    device_phases={
        "host-to-device": 0.98,
        "forward": 10.4,
        "loss": 0.05,
        "backward": 19.0,
        "optimizer": 0.92,
        "zero_grad": 0.04,
    },
    host_to_device_bytes=38_535_168,
    moved_bytes_per_step=58_400_000_000,
    calls_per_step=1_480,
    call_overhead_s=4.1e-6,
    ceilings=Ceilings(
        {"float32": 5.1e13, "tf32": 3.62e14, "bfloat16": 7.21e14, "float16": 7.08e14},
        3.9e12,
        {"pageable": 9.8e9, "pinned": 5.51e10},
        4.1e-6,
        "2026-07-14",
    ),
    trace_path="/nowhere/baseline-trace.json.gz",
    habits=(
        HabitRow("zero_grad", "none", phase_ms=0.12),
        HabitRow("zero_grad", "zeros", phase_ms=0.41),
        HabitRow("zero_grad", "manual", phase_ms=1.32),
        HabitRow("eval_no_grad", "grad", step_ms=11.2, memory_bytes=int(5.4 * GIB)),
        HabitRow("eval_no_grad", "no_grad", step_ms=10.6, memory_bytes=int(0.9 * GIB)),
        HabitRow("eval_no_grad", "inference_mode", step_ms=10.5, memory_bytes=int(0.9 * GIB)),
    ),
    sync_places=(
        SyncPlace("train.py", 41, "total += loss.item()  # [red]", 1.0, 21.3),
        SyncPlace("", 0, "the backward pass", 1.0, None),
    ),
    device_busy_share=0.96,
    kernels_per_step=1042,
    flops_per_step=1_570_000_000_000,
    ceiling_flops_per_s=5.1e13,
    ceiling_dtype="float32",
    copy_bytes_per_s=3.9e12,
    bottleneck=Bottleneck.COMPUTE,
    evidence="the GPU is busy 96 % of the step and convolutions reach 93 % of the float32 ceiling.",
)
FOUND = (
    Finding(
        "loss_sync",
        "train.py",
        41,
        "total += loss.item()  # [red]",
        ".item() makes the host wait for the loss at every step",
        "read it every hundredth step, or add it up on the device and read the sum at the end",
    ),
    Finding(
        "batch_size",
        "train.py",
        12,
        "loader = DataLoader(images, batch_size=64)",
        "the batch is small for this GPU",
        "try a larger one",
    ),
)
READ = events.SourceRead(("train.py",), FOUND, ("deploy.ipynb could not be read: no notebook",))
