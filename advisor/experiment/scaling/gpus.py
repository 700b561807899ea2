"""The GPUs of a session: their number, and whether they are enough."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.request import Request
from advisor.machine.hardware import visible_gpus
from advisor.records import Facts, Hardware, Mode
from advisor.workloads.scripts import is_script

# The stage of a session in which it measures on several GPUs.
SEVERAL = "several GPUs"


def gpus_in_use(request: Request, hardware: Hardware) -> int:
    """The GPUs (or processes on the CPU) of all machines of a session. Raises UsageError where this one has fewer."""
    wanted = request.gpus
    if request.machines > 1 and spreads_itself(request):
        raise UsageError(
            f"{request.target.target} joins its ranks itself, which is measured on one machine only.",
            "Leave --nnodes out; or give a build() that returns the plain parts.",
        )
    if wanted == 1:
        return request.machines
    if request.target.device == "cpu":
        return request.machines * (wanted or max(2, hardware.host.usable_cores))
    there = gpus_there(hardware)
    if there < max(1, wanted):
        raise UsageError(
            f"--gpus asks for {wanted or 'all'} GPUs, and {there} {'is' if there == 1 else 'are'} visible. A part "
            "of a GPU (MIG) does not count.",
            "Ask for fewer, or show more with CUDA_VISIBLE_DEVICES; with --device cpu processes start on the CPU.",
        )
    return request.machines * (wanted or there)


def spreads_itself(request: Request) -> bool:
    """Whether a session on several GPUs is of a script for torchrun: then all its trials run in its ranks."""
    target = request.target
    is_one = request.wants_several and is_script(target.target, target.directory, "build")
    return is_one and is_for_ranks(target.target, target.directory)


def trains_in_ranks(facts: Facts) -> bool:
    """Whether a script that was started in several ranks trains in them together, by a loop of its own."""
    workload = facts.workload
    return workload.mode is Mode.TRAIN and workload.own_step and bool(workload.spread_already)


def gpus_there(hardware: Hardware) -> int:
    """The number of whole GPUs that CUDA shows to this process and its children."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and not hardware.gpus:  # NVML cannot be used, which CUDA need not know
        return len([name for name in shown.split(",") if name.strip()])
    return len([gpu for gpu in visible_gpus(hardware) if not gpu.mig_enabled])


def why_not_several(facts: Facts) -> str:
    """The reason to measure a workload on one GPU only; empty where several make sense."""
    if facts.workload.mode is not Mode.TRAIN:
        return "several GPUs are for training; for inference start a copy of the program on each"
    if facts.workload.own_step:
        return "the step is your own, and what several GPUs change happens inside it"
    if facts.workload.spread_already:
        return f"{facts.workload.spread_already}: return the plain parts from build(), for perf-advisor to spread"
    loader = facts.workload.loader
    if loader is not None and loader.iterable_dataset:
        return "the loader's dataset is iterable: nothing but its own code can divide it among ranks"
    return ""


# What a script for torchrun reads or calls, itself or in a module beside it: Accelerate does the rest for its own.
_OF_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "init_process_group", "init_device_mesh", "Accelerator"})


def is_for_ranks(target: str, directory: str) -> bool:
    """Whether a script is written to be started by torchrun, as it or the modules beside it that it imports say."""
    waiting, read = [Path(directory, target)], set[Path]()
    while waiting:
        path = waiting.pop()
        read.add(path)
        try:
            nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace")))]
        except (OSError, SyntaxError, ValueError):
            continue
        if any(getattr(node, name, None) in _OF_RANKS for node in nodes for name in ("value", "id", "attr", "name")):
            return True
        beside = (Path(path.parent, f"{name.replace('.', '/')}.py") for name in _imported(nodes))
        waiting += {one for one in beside if one.is_file()} - read
    return False


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    """The names of the modules that are imported, and of what is imported from them, which may be modules too."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = f"{node.module}." if node.module else ""
            yield from (package[:-1], *(package + alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
