"""A step taken apart: the time of its phases, and torch.profiler's operator tables, device time and Chrome trace."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import profile, record_function, schedule

from advisor.machine.device import backend_of
from advisor.records import OperatorRow, Phase, Profile
from advisor.step.graph import GraphedStep
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.measurement.draws import Feed

# Usual time limit for the phases. Seconds.
PHASES_LIMIT_S = 0.6
_MOST_STEPS = 20
_FEWEST_STEPS = 3
# The name for the part of a step that is replayed as one graph.
CAPTURED = "captured step"

# Runs a call as the named phase of a step and returns its result.
RunPhase = Callable[[str, Callable[[], Any]], Any]
ROWS = 40
_PHASES = frozenset(str(phase) for phase in Phase)
# Prefixes of the names of ranges: the profiler's, those of collectives, and those of compiled code.
_RANGES = ("ProfilerStep", "nccl:", "##")
# Copies between host and device: the device makes them beside its kernels and computes nothing.
_TRANSFERS = ("Memcpy HtoD", "Memcpy DtoH")
_OWN_WAIT = "cudaDeviceSynchronize"

# Operators by the families of modules that compute the same.
_FAMILIES = {
    **dict.fromkeys(("addmm", "linear", "mm"), "linear"),
    **dict.fromkeys(("baddbmm", "bmm"), "batched_product"),
    **dict.fromkeys(("gru", "lstm", "rnn_relu", "rnn_tanh"), "recurrent"),
    "scaled_dot_product_attention": "attention",
}


def measure_phases(
    step: TrainStep | InferStep | GraphedStep, feed: Feed, *, limit_s: float = PHASES_LIMIT_S
) -> dict[str, float]:
    """Milliseconds per phase over several synchronised steps. A captured step has two phases: batch and replay.

    Phases are medians, but the wait for data is a mean, since only every fourth batch may take long. Stops after
    ``limit_s`` if at least three steps are done, and after twice that if at least one is done.
    """
    times_s: dict[str, list[float]] = {}
    backend = backend_of(step.device)

    def timed(phase: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        backend.synchronize()
        times_s.setdefault(phase, []).append(time.perf_counter() - start)
        return result

    started = time.perf_counter()
    for done in range(_MOST_STEPS):
        limit = limit_s if done >= _FEWEST_STEPS else 2 * limit_s
        if done and time.perf_counter() - started > limit:
            break
        run_in_phases(step, feed, timed)
    return {phase: 1e3 * (fmean if phase == Phase.DATA_WAIT else median)(times) for phase, times in times_s.items()}


def run_in_phases(step: TrainStep | InferStep | GraphedStep, feed: Feed, run: RunPhase) -> None:
    """One step of the timed loop in phases, each of which is run by ``run``."""
    batch = run(Phase.DATA_WAIT, feed.next)
    if isinstance(step, GraphedStep):
        run(CAPTURED, lambda: step(batch))
        return
    moved = run(Phase.HOST_TO_DEVICE, lambda: step.to_device(batch))
    if isinstance(step, InferStep):
        step.begin_graphs()
        run(Phase.OWN_STEP if isinstance(step, OwnStep) else Phase.FORWARD, lambda: step.forward(moved))
        return
    run(Phase.ZERO_GRAD, step.zero_grad)
    step.begin_graphs()
    output = run(Phase.FORWARD, lambda: step.forward(moved))
    loss = run(Phase.LOSS, lambda: step.loss(output, moved))
    run(Phase.BACKWARD, lambda: step.backward(loss))
    run(Phase.OPTIMIZER, step.update)
    step.finish(loss.detach())


def record_step(
    measured: Profile, step: TrainStep | InferStep, feed: Feed, *, trace_path: str = "", warm: bool = True
) -> Profile:
    """Run a step under the profiler, each phase in a range of its name, and add the recording to the profile.

    ``warm``: an unrecorded step runs before it, since that one includes the start of the profiler.
    """
    backend = backend_of(step.device)
    on_device = len(backend.activities) > 1

    def annotated(phase: str, call: Callable[[], Any]) -> Any:
        with record_function(phase):
            return call()

    rounds = schedule(wait=0, warmup=1, active=1, repeat=1) if warm else None
    with profile(activities=backend.activities, schedule=rounds, record_shapes=True, acc_events=True) as recorded:
        for _ in range(2 if warm else 1):
            run_in_phases(step, feed, annotated)
            backend.synchronize()  # no kernel may reach from one step into the next
            recorded.step()
    written = ""
    if trace_path:
        with contextlib.suppress(OSError, RuntimeError):  # such as a full disk
            recorded.export_chrome_trace(trace_path)
            written = trace_path
    events = list(recorded.events() or [])
    measured = replace(
        measured,
        operators=_operator_rows(recorded.key_averages(), on_device=on_device),
        calls_per_step=outermost_calls(events),
        trace_path=written,
        called=called_families(events),
    )
    return with_device(measured, events) if on_device else measured


def _operator_rows(averages: Iterable[Any], *, on_device: bool) -> tuple[OperatorRow, ...]:
    """The operators with the longest own time. Ranges are left out, since the operators in them have their own rows."""
    rows = [
        OperatorRow(row.key, row.count, row.self_cpu_time_total / 1e3, row.self_device_time_total / 1e3)
        for row in averages
        if row.device_type == DeviceType.CPU
        and not is_range(row)
        # The profiler and this module make two calls at the end. If there are more, the step waits itself.
        and not (row.key == _OWN_WAIT and row.count <= 2)
    ]
    rows.sort(key=lambda row: row.device_ms if on_device else row.host_ms, reverse=True)
    return tuple(rows[:ROWS])


def outermost_calls(events: Iterable[Any]) -> int:
    """Count the operators that no other operator called, since nested calls cost less."""

    def is_called(event: Any) -> bool:
        parent = event.cpu_parent
        return parent is not None and (_is_operator(parent) or is_called(parent))

    return sum(not is_called(event) for event in events if _is_operator(event))


def called_families(events: Sequence[Any]) -> tuple[str, ...]:
    """The families of modules that operators belong to; a convolution's follows from its weights' dimensions."""
    found = {_FAMILIES.get(event.name.removeprefix("aten::"), "") for event in events} - {""}
    weights = [event.input_shapes[1] for event in events if event.name == "aten::convolution" and event.input_shapes]
    return tuple(sorted(found | {f"conv{len(shape) - 2}d" for shape in weights}))


def with_device(measured: Profile, events: Sequence[Any]) -> Profile:
    """The profile with the device's part of the recorded step. Transfers from and to the host do not count."""
    on_device = [event for event in events if event.device_type == DeviceType.CUDA and not is_range(event)]
    computing = [event for event in on_device if not event.name.startswith(_TRANSFERS)]
    return replace(
        measured,
        kernels_per_step=len(computing),
        device_busy_share=min(1.0, busy_us(computing) / 1e3 / measured.step_ms),
    )


def busy_us(events: Iterable[Any]) -> float:
    """The microseconds in which at least one of these events ran."""
    covered, latest = 0.0, float("-inf")
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        covered += max(0.0, end - max(start, latest))
        latest = max(latest, end)
    return covered


def _is_operator(event: Any) -> bool:
    return bool(event.name.startswith("aten::"))


def is_range(event: Any) -> bool:
    """Whether an event or a row is a named range (perf-advisor's or the user's) and not work."""
    name: str = event.key
    return bool(getattr(event, "is_user_annotation", False)) or name in _PHASES or name.startswith(_RANGES)
