"""Exposed communication: the time in which a GPU runs communication kernels and no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.trial.measurement.clock import StepClock

_STEPS = 4
_COMMUNICATION = "nccl"
Span = tuple[float, float]


def exposed_by_profiler(clock: StepClock) -> float | None:
    """Milliseconds of a step in which only NCCL's kernels run on this rank's device; None where none were seen."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    clock.run(1)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        clock.run(_STEPS)
    communication: list[Span] = []
    computation: list[Span] = []
    for event in profiler.events() or ():
        if event.device_type != DeviceType.CUDA or getattr(event, "is_user_annotation", False):
            continue
        span = (event.time_range.start, event.time_range.end)
        name = event.name.lower()
        if name.startswith((f"{_COMMUNICATION}:", "##", "profilerstep")):
            continue  # a name for a span of time, not a kernel
        (communication if _COMMUNICATION in name else computation).append(span)
    if not communication:
        return None
    return (length(union((*communication, *computation))) - length(union(computation))) / 1e3 / _STEPS


def union(spans: Iterable[Span]) -> list[Span]:
    """The time that spans cover, as spans that do not overlap."""
    covered: list[Span] = []
    for start, end in sorted(spans):
        if covered and start <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(end, covered[-1][1]))
        else:
            covered.append((start, end))
    return covered


def length(spans: Sequence[Span]) -> float:
    """The time in spans that do not overlap."""
    return sum(end - start for start, end in spans)
