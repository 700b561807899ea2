"""The findings that matter to a measured loop: on its device, in its mode, with the loader that it has."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.records import Finding, LoaderFacts, Mode, Phase, Profile, WorkloadFacts

# Recipes whose habits cost time on a GPU only: reading a value, or copying, waits for nothing on a CPU.
ON_GPU_ONLY = frozenset({"loss_sync", "host_sync", "empty_cache", "pin_memory", "create_on_device"})
# Recipes whose habits are of loops that train.
IN_TRAINING_ONLY = frozenset({"loss_sync", "empty_cache", "zero_grad", "grad_clip"})
_OF_LOADERS = frozenset({"num_workers", "pin_memory"})
# A loader whose part of the step is below this share has nothing to gain. Unitless.
_LEAST_SHARE = 0.01


def relevant(
    findings: Iterable[Finding], workload: WorkloadFacts, profile: Profile | None, *, gradients_at_times: int = 0
) -> tuple[Finding, ...]:
    """The findings about what the measured loop does, and what costs time on its device.

    Where gradients are there at times only, to clear them in another way would change what is trained.
    """
    on_gpu, trains = workload.on_cuda, workload.mode is Mode.TRAIN
    return tuple(
        finding
        for finding in findings
        if (on_gpu or finding.recipe not in ON_GPU_ONLY)
        and (trains or finding.recipe not in IN_TRAINING_ONLY)
        and not (finding.recipe == "zero_grad" and gradients_at_times)
        and (finding.recipe not in _OF_LOADERS or (_lacks(workload.loader, finding.recipe) and _feeds_slowly(profile)))
    )


def _feeds_slowly(profile: Profile | None) -> bool:
    """Whether waiting for data and copying it take a share of the step that counts; so do times that are not known."""
    known = [profile.phases.get(phase) for phase in (Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)] if profile else []
    taken = [milliseconds for milliseconds in known if milliseconds is not None]
    return not taken or profile is None or sum(taken) >= _LEAST_SHARE * profile.step_ms


def _lacks(loader: LoaderFacts | None, recipe: str) -> bool:
    """Whether the measured loop has a loader, and that has neither workers nor pinned memory, as the finding says."""
    return loader is not None and not (loader.num_workers if recipe == "num_workers" else loader.pin_memory)
