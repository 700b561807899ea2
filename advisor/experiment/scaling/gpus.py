"""The GPUs of a session: their number, and whether they are enough."""

import ast
import os
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.request import Request
from advisor.machine.hardware import visible_gpus
from advisor.records import Facts, Hardware, Mode
from advisor.workloads.scripts import is_script

# The stage in which a session measures on several GPUs.
SEVERAL = "several GPUs"


def gpus_in_use(request: Request, hardware: Hardware) -> int:
    """The number of GPUs (or CPU processes) of all machines in a session. Raises UsageError if there are too few."""
    wanted = request.gpus
    if request.machines > 1 and spreads_itself(request):
        raise UsageError(
            f"{request.target.target} joins its ranks itself, and is measured on one machine only.",
            "Leave --nnodes out; or give a build() that returns the model without a wrapper for ranks.",
        )
    if wanted == 1:
        return request.machines
    if request.target.device == "cpu":
        return request.machines * (wanted or max(2, hardware.host.usable_cores))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and not hardware.gpus:  # NVML cannot be used; CUDA may still see GPUs
        there = len([name for name in shown.split(",") if name.strip()])
    else:
        there = len([gpu for gpu in visible_gpus(hardware) if not gpu.mig_enabled])
    if there < max(1, wanted):
        raise UsageError(
            f"--gpus asks for {wanted or 'all'} GPUs, and {there} {'is' if there == 1 else 'are'} visible. A part "
            "of a GPU (MIG) does not count.",
            "Ask for fewer, or show more with CUDA_VISIBLE_DEVICES; with --device cpu processes start on the CPU.",
        )
    return request.machines * (wanted or there)


def spreads_itself(request: Request) -> bool:
    """Whether a session on several GPUs has a script for torchrun as target: then all its trials run in its ranks."""
    target, directory = request.target.target, request.target.directory
    return request.wants_several and is_script(target, directory, "build") and is_for_ranks(target, directory)


def why_not_several(facts: Facts) -> str:
    """The reason to measure a workload on one GPU only; empty if several make sense."""
    if facts.workload.mode is not Mode.TRAIN:
        return "several GPUs are for training; for inference start a copy of the program on each"
    if facts.workload.own_step:
        return "the step is your own, and what several GPUs change happens inside it"
    if facts.workload.spread_already:
        return f"{facts.workload.spread_already}: return the plain parts from build(), for perf-advisor to spread"
    loader = facts.workload.loader
    if loader is not None and loader.iterable_dataset:
        return "the loader's dataset is iterable: only its own code can divide it among ranks"
    return ""


# The variables that a script for torchrun reads and the functions that it calls. Accelerate reads them itself.
_READ = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_CALLED = frozenset({"init_process_group", "init_device_mesh", "Accelerator"})
_OF_RANKS = {"value": _READ, "id": _CALLED, "attr": _CALLED, "name": _CALLED}  # by the field of a syntax node


def is_for_ranks(target: str, directory: str) -> bool:
    """Whether a script is for torchrun: it, or a module of its folder that it imports, uses one of these names."""
    waiting, read = [Path(directory, target)], set[Path]()
    while waiting:
        path = waiting.pop()
        read.add(path)
        try:
            nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace")))]
        except (OSError, SyntaxError, ValueError):
            continue
        if any(getattr(node, field, None) in words for node in nodes for field, words in _OF_RANKS.items()):
            return True
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = Path(path.parent, *(getattr(node, "module", None) or "").split("."))
                named = (module, *(Path(module, *alias.name.split(".")) for alias in node.names))  # modules or names
                waiting += {file for one in named if (file := Path(f"{one}.py")).is_file()} - read
    return False
