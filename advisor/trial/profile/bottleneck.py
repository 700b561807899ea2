"""The verdict on what a step is bound by, from a profile's figures. Pure functions."""

from __future__ import annotations

from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_rate
from advisor.figures.roof import INPUT_BOUND_SHARE, overhead_share, step_copy_share, step_roof_share
from advisor.records import Bottleneck, Phase, Profile

_LAUNCH_BOUND_BUSY = 0.7
_LAUNCH_BOUND_OVERHEAD = 0.3
_COMPUTE_BOUND_SHARE = 0.4
# Below this share of both roofs, neither of them holds the step up.
_FAR_SHARE = 0.1
# Convolutions can be a little faster than the square product that the ceiling is.
_MEASURED_IN_PEACE = 1.1


def judge(measured: Profile) -> tuple[Bottleneck | None, str]:
    """The step's bottleneck, None where it is far from every roof, and the evidence in one sentence."""
    waiting, copying = measured.share(Phase.DATA_WAIT), measured.share(Phase.HOST_TO_DEVICE)
    if _starves(measured, waiting + copying):
        if copying > waiting and measured.host_to_device_bytes:
            return Bottleneck.COPY, _copy_evidence(measured, copying)
        return Bottleneck.INPUT, _input_evidence(measured, waiting, copying)
    busy = measured.device_busy_share
    if busy is not None and busy < _LAUNCH_BOUND_BUSY:
        kernels = f" for {measured.kernels_per_step:.0f} kernels" if measured.kernels_per_step else ""
        computing = format_percent(busy)
        return Bottleneck.LAUNCH, f"the GPU computes in {computing} of the step; the host launches{kernels} in the rest"
    overhead = overhead_share(measured)
    if busy is None and overhead is not None and overhead > _LAUNCH_BOUND_OVERHEAD:
        return Bottleneck.LAUNCH, (
            f"the step makes {measured.calls_per_step:.0f} operator calls, and calling alone costs "
            f"{format_percent(overhead)} of it"
        )
    return _arithmetic_or_memory(measured)


def _starves(measured: Profile, fetching: float) -> bool:
    """Whether getting the data is what holds the step up.

    A device that computes meanwhile does not wait for it: its idle share bounds what the data can cost.
    """
    busy = measured.device_busy_share
    if busy is None:
        return fetching > INPUT_BOUND_SHARE
    idle = 1 - busy
    return min(fetching, idle) > INPUT_BOUND_SHARE or (busy < _LAUNCH_BOUND_BUSY and fetching > idle / 2)


def _input_evidence(measured: Profile, waiting: float, copying: float) -> str:
    if measured.phases.get(Phase.HOST_TO_DEVICE, 0.0) < 0.01 * measured.phases.get(Phase.DATA_WAIT, 0.0):
        return f"waiting for data takes {format_percent(waiting)} of the step"
    return f"waiting for data and copying it take {format_percent(waiting + copying)} of the step"


def _copy_evidence(measured: Profile, copying: float) -> str:
    moved_bytes = measured.host_to_device_bytes or 0
    copy_ms = measured.phases[Phase.HOST_TO_DEVICE]
    reached = f"{format_bytes(moved_bytes)} in {format_ms(copy_ms)} is {_rate(moved_bytes / (copy_ms / 1e3))}"
    rates = measured.ceilings.host_to_device_bytes_per_s if measured.ceilings else {}
    known = " and ".join(f"{_rate(rate)} from {memory} memory" for memory, rate in rates.items())
    ceiling = f"; this machine reaches {known}" if known else ""
    return f"copying the batch to the GPU takes {format_percent(copying)} of the step: {reached}{ceiling}"


def _arithmetic_or_memory(measured: Profile) -> tuple[Bottleneck | None, str]:
    """The nearer of the two limits of a busy device: arithmetic or memory traffic."""
    share, moved = step_roof_share(measured), step_copy_share(measured)
    if max(share or 0.0, 1.0 if moved is None else moved) < _FAR_SHARE:
        return None, _far_from_both(measured, share or 0.0, moved or 0.0)
    if share is not None and (share >= _COMPUTE_BOUND_SHARE or (moved is not None and share > moved)):
        return Bottleneck.COMPUTE, _arithmetic_evidence(measured, share)
    return Bottleneck.MEMORY, f"{_little_arithmetic(measured, share)}{_traffic(measured, moved)}"


def _far_from_both(measured: Profile, share: float, moved: float) -> str:
    """The likely reason why the device is busy although neither compute nor bandwidth limits the step."""
    calls = f" ({measured.calls_per_step:.0f} calls)" if measured.calls_per_step else ""
    reached = f"{format_percent(share)} of the {measured.ceiling_dtype} matrix-product rate"
    return (
        f"probably the overhead of many small operators{calls}, or of other programs: the step reaches {reached} and "
        f"{format_percent(moved)} of what a copy in memory reaches"
    )


def _arithmetic_evidence(measured: Profile, share: float) -> str:
    if share <= _MEASURED_IN_PEACE:
        reached = format_percent(share)
        return f"the step reaches {reached} of this machine's {measured.ceiling_dtype} matrix-product rate"
    return (
        f"the step computes faster than this machine's {measured.ceiling_dtype} matrix products did when they were "
        "measured: something else kept the machine busy then"
    )


def _little_arithmetic(measured: Profile, share: float | None) -> str:
    if measured.flops_per_step == 0:
        return "the device is busy, yet the step multiplies no matrices: it moves bytes"
    reached = format_percent(share) if share is not None else "an unknown share"
    return (
        f"the device is busy, yet reaches {reached} of its {measured.ceiling_dtype} matrix-product rate: it moves bytes"
    )


def _traffic(measured: Profile, moved: float | None) -> str:
    """A phrase on the bytes moved per step, if counted, and their rate against the machine's copy rate."""
    if moved is None or not measured.moved_bytes_per_step or not measured.copy_bytes_per_s:
        return ""
    rate = _rate(measured.moved_bytes_per_step / (measured.step_ms / 1e3))
    amount = f", about {format_bytes(measured.moved_bytes_per_step)} a step, {rate}"
    if moved > 1:
        return f"{amount}, more than a copy in memory reaches ({_rate(measured.copy_bytes_per_s)}): caches help"
    return f"{amount}, {format_percent(moved)} of what a copy reaches"


def _rate(bytes_per_s: float) -> str:
    return format_rate(bytes_per_s, "B")
