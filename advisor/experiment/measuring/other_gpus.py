"""Trials side by side: which GPUs beside the session's own may run trials, and which moves may be measured there.

Only single trials go to other GPUs, whose outcome does not depend on what is measured meanwhile: a candidate alone, a
setting left out, another run of the same settings. All else runs on the session's own GPU, the instruments and the
turns with the baseline while nothing else runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.experiment.known import Kind
from advisor.figures.formatting import format_percent
from advisor.recipe.catalog import Catalog
from advisor.records import Facts, GpuInfo, Hardware, TargetSpec, Value

# The moves that may be measured on another GPU, by the move that is measured meanwhile. Beside one that may change the
# stack nothing is left out of it: that result would be about the stack as it was.
_ALONE = frozenset({Kind.ALONE, Kind.AGAIN})
KINDS_BESIDE = {
    **dict.fromkeys((Kind.LEAP, Kind.ADD, Kind.SWAP, Kind.AGAIN), _ALONE),
    **dict.fromkeys((Kind.ALONE, Kind.DROP), _ALONE | {Kind.DROP}),
}
# The cores of a trial beside its loader's workers: one launches kernels, one runs the backward pass. A count.
_CORES_OF_A_TRIAL = 2
# Those of one that compiles: half the processes that PyTorch's compiler starts at most. A count.
_CORES_TO_COMPILE = 16

# A GPU on which the step differs more is not used, however noisy two runs seem while few are known. Unitless.
_LARGEST_DIFFERENCE = 0.03


@dataclass(frozen=True, slots=True)
class OtherGpus:
    """The other GPUs that trials may run on. ``problem`` says why there are none although there are such GPUs."""

    devices: tuple[str, ...] = ()
    problem: str = ""


def other_gpus(facts: Facts, target: TargetSpec, environment: Mapping[str, str] = os.environ) -> OtherGpus:
    """The GPUs beside the session's own: of the same model, used by nobody, with cores for a trial on each."""
    visible = visible_gpus(facts.hardware, environment)
    if not facts.on_cuda or len(visible) < 2:
        return OtherGpus()
    own = int(target.device.partition(":")[2] or 0)
    if any(gpu.mig_enabled for gpu in visible):
        return OtherGpus(problem="the GPUs are divided into MIG instances")
    if len({gpu.name for gpu in visible}) > 1:
        return OtherGpus(problem="the GPUs are of different models")
    free = [place for place, gpu in enumerate(visible) if place != own and not gpu.processes]
    if not free:
        return OtherGpus(problem="other processes use the other GPUs")
    each, usable = cores_of_a_trial(facts, {}), facts.hardware.host.usable_cores
    if usable < 2 * each:
        return OtherGpus(problem=f"two trials at a time need {2 * each} cores, and {usable} are usable")
    return OtherGpus(tuple(f"cuda:{place}" for place in free[: usable // each - 1]))


def visible_gpus(hardware: Hardware, environment: Mapping[str, str] = os.environ) -> tuple[GpuInfo, ...]:
    """The GPUs that CUDA numbers from 0 here, in its order; that of NVML where they are all of one model."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return hardware.gpus
    found: list[GpuInfo] = []
    for name in chosen.split(","):
        gpu = _named(name.strip(), hardware.gpus)
        if gpu is None:
            break  # CUDA reads no further than the names that it knows
        found.append(gpu)
    return tuple(found) if len({gpu.uuid for gpu in found}) == len(found) else ()


def _named(name: str, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    """The GPU that CUDA takes a name for: its number, or the beginning of one UUID."""
    if name.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    meant = [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return meant[0] if len(meant) == 1 else None


def cores_of_a_trial(facts: Facts, settings: Mapping[str, Value], catalog: Catalog | None = None) -> int:
    """The cores that a trial of these settings keeps busy."""
    loader = facts.workload.loader
    workers = settings.get("data.num_workers", loader.num_workers if loader else 0)
    compiles = catalog is not None and catalog.cost(settings) > 0
    return _CORES_OF_A_TRIAL + (workers if isinstance(workers, int) else 0) + (_CORES_TO_COMPILE if compiles else 0)


def gpus_alike(devices: Sequence[str], alone_ms: float, together_ms: Sequence[float], noise_floor: float) -> OtherGpus:
    """The GPUs on which the baseline was as fast as alone, while it ran on all of them at the same time.

    The first of ``together_ms`` is that of the session's own GPU: where it was disturbed, none of the others is used.
    """
    limit = min(noise_floor, _LARGEST_DIFFERENCE)
    differences = [step_ms / alone_ms - 1 for step_ms in together_ms]
    own, *others = differences
    kept = tuple(device for device, change in zip(devices, others, strict=True) if abs(change) <= limit)
    if abs(own) <= limit and kept:
        return OtherGpus(kept)
    worst = max([own, *others], key=abs) if abs(own) <= limit else own
    change = f"{format_percent(abs(worst), digits=1)} {'longer' if worst > 0 else 'less'}"
    return OtherGpus(
        problem=f"at the same time on {len(differences)} GPUs the baseline's step took {change}, more than the "
        f"{format_percent(limit, digits=1)} that noise explains"
    )
