"""The switches of a process that recipes may set: read, and put back. Planted targets import it too."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch._functorch import config as functorch_config

VARIABLES = ("LD_PRELOAD", "MALLOC_CONF", "OMP_", "KMP_", "MKL_", "PYTORCH_", "TORCH")


def process_state() -> dict[str, Any]:
    """Threads, cores, global flags and variables of the environment, by name."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    dynamo, inductor = sys.modules.get("torch._dynamo.config"), sys.modules.get("torch._inductor.config")
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "bf16_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "cudnn": [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32],
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ],
        "grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "profiler": torch._C._autograd._profiler_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
        "flushes_denormals": (torch.full((1,), 1e-30) * 1e-10).item() == 0,
        "memory_budget": functorch_config.activation_memory_budget,
        "freezing": inductor.freezing if inductor else False,
        "recompile_limit": dynamo.recompile_limit if dynamo else None,
        "collector": [gc.isenabled(), *gc.get_threshold()],
        "environment": {name: text for name, text in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


@contextmanager
def state_put_back() -> Iterator[None]:
    """Inside this context recipes may set what they like; afterwards the process is as it was."""
    before = process_state()
    try:
        yield
    finally:
        forget_accelerator()
        os.sched_setaffinity(0, before["cores"])
        gc.enable()
        torch.set_num_threads(before["threads"])
        torch.set_float32_matmul_precision(before["float32_matmul"])
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before["bf16_reduction"]
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before["fp16_reduction"]
        cudnn = torch.backends.cudnn
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = before["cudnn"]
        torch.use_deterministic_algorithms(before["deterministic"][0], warn_only=before["deterministic"][1])
        torch.autograd.set_detect_anomaly(before["grad"][2])
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        torch.set_flush_denormal(before["flushes_denormals"])
        functorch_config.activation_memory_budget = before["memory_budget"]
        with suppress(KeyError):
            sys.modules["torch._inductor.config"].freezing = before["freezing"]
        if before["recompile_limit"]:
            sys.modules["torch._dynamo.config"].recompile_limit = before["recompile_limit"]


def forget_accelerator() -> None:
    """Accelerate keeps its state for the process, as if there still were an Accelerator."""
    state = sys.modules.get("accelerate.state")
    if state is not None and state.AcceleratorState._shared_state:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def end_loader_workers() -> None:
    """End the workers of every loader that is still there, which PyTorch does within milliseconds when asked."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    for one in gc.get_objects():
        if issubclass(type(one), _MultiProcessingDataLoaderIter):
            one._shutdown_workers()
