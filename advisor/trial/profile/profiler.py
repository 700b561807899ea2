"""The profile: phases, operators, the device's activity, its FLOPs and bytes, the bottleneck, and compilations."""

import contextlib
import math
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from advisor.figures.formatting import counted, format_first, format_percent
from advisor.figures.roof import INPUT_BOUND_SHARE, overhead_share, step_copy_share, step_roof_share
from advisor.machine.device import backend_of
from advisor.records import Bottleneck, Phase, Profile
from advisor.step.batch import tensors_of
from advisor.step.compile import is_compiled
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.measurement.draws import Feed
from advisor.trial.profile.ceilings import convolutions_in_tf32, float32_matmul, machine_ceilings
from advisor.trial.profile.recording import measure_phases, record_step

_LONG_STEP_MS = 1000.0  # a longer step is recorded without another one before it


def profile_step(
    step: TrainStep | InferStep, feed: Feed, step_ms: float, *, trace_path: str = "", deadline: float = math.inf
) -> Profile:
    """The instrumented pass over an eager step. ``step_ms`` is the step's time as the timed loop measured it.

    A Chrome trace of a step goes to ``trace_path``. Shortly before ``deadline`` (a ``time.monotonic()``), no ceilings
    are measured.
    """
    measured = Profile(step_ms=step_ms, phases=_phases(step, feed, step_ms))
    measured = record_step(measured, step, feed, trace_path=trace_path, warm=step_ms < _LONG_STEP_MS)
    measured = with_work(measured, step, feed)
    if step.device.type != "cpu":
        copied = [] if feed.resident else [one for one in tensors_of(feed.next()) if one.device.type == "cpu"]
        measured = replace(measured, host_to_device_bytes=sum(tensor.nbytes for tensor in copied))
    own = next((p.dtype for p in step.model.parameters() if p.is_floating_point()), torch.float32)
    casts = step.plan.autocast
    if casts == "none" and isinstance(step, OwnStep):  # the step's own autocast, as in the watched round of a script
        casts = getattr(step.function, "casts", "none")
    dtype: torch.dtype = own if casts == "none" else getattr(torch, casts)
    # By default float32 convolutions run in TF32, and matrix products do not.
    convolving = bool(measured.operators) and "conv" in measured.operators[0].name  # it takes longest
    in_tf32 = convolutions_in_tf32() if convolving else float32_matmul() != "highest"
    tf32 = dtype is torch.float32 and in_tf32 and backend_of(step.device).float32_in_tf32()
    name = "tf32" if tf32 else str(dtype).removeprefix("torch.")
    ceilings = machine_ceilings(step.device, dtype, left_s=deadline - time.monotonic())
    measured = replace(
        measured,
        ceilings=ceilings,
        ceiling_dtype=name,
        ceiling_flops_per_s=ceilings.matmul_flops_per_s.get(name),
        copy_bytes_per_s=ceilings.copy_bytes_per_s,
        call_overhead_s=ceilings.call_overhead_s,
    )
    bottleneck, evidence = judge(measured)
    return replace(measured, bottleneck=bottleneck, evidence=evidence)


def phases_alone(step: TrainStep | InferStep, feed: Feed, step_ms: float) -> Profile:
    """A profile of the phases alone. It names a bottleneck only if that is the wait for data."""
    measured = Profile(step_ms=step_ms, phases=_phases(step, feed, step_ms), phases_alone=True)
    bottleneck, evidence = judge(measured)
    if bottleneck not in (Bottleneck.INPUT, Bottleneck.COPY):
        return measured
    return replace(measured, bottleneck=bottleneck, evidence=evidence)


def with_work(measured: Profile, step: TrainStep | InferStep, feed: Feed) -> Profile:
    """The profile with the counted work of a step; unchanged if the counters cannot follow the model."""
    counter, traffic = FlopCounterMode(display=False), TrafficCounter()
    batch = feed.next()  # loading it in this process is not the step's work
    # The counters dispatch in Python, which some custom operators refuse. The profile is useful without the counts.
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, AttributeError), traffic, counter:
        step(batch)
        compiled = step.plan.compiles_with != "none" or is_compiled(step.model)
        return replace(
            measured,
            flops_per_step=counter.get_total_flops(),
            moved_bytes_per_step=None if compiled else traffic.moved_bytes,  # unknown for compiled code
            host_made_tensors=None if step.device.type == "cpu" else traffic.host_made,
        )
    return measured


def _phases(step: TrainStep | InferStep, feed: Feed, step_ms: float) -> dict[str, float]:
    """The phases. If workers load the data, the wait for data is what is left of the timed loop's step, if longer.

    Workers get ahead while this pass waits for the device at each boundary, so it sees too little waiting.
    """
    phases = measure_phases(step, feed)
    if feed.queued_batches:
        others_ms = sum(phases.values()) - phases[Phase.DATA_WAIT]
        phases[Phase.DATA_WAIT] = max(phases[Phase.DATA_WAIT], step_ms - others_ms)
    return phases


_LAUNCH_BOUND_BUSY = 0.7
_LAUNCH_BOUND_OVERHEAD = 0.3
_COMPUTE_BOUND_SHARE = 0.4
_FAR_SHARE = 0.1  # below this share of both roofs, neither of them limits the step
# Copying the batch is named beside the wait for data if it takes a larger share of the step. Unitless.
_LEAST_COPYING = 0.01


def judge(measured: Profile) -> tuple[Bottleneck | None, str]:
    """The step's bottleneck (None if it is far from every roof) and the evidence in one sentence."""
    waiting, copying = measured.share(Phase.DATA_WAIT), measured.share(Phase.HOST_TO_DEVICE)
    busy, fetching = measured.device_busy_share, waiting + copying
    # A device that computes meanwhile does not wait for data, so its idle share limits the cost of the wait.
    idle = 1.0 if busy is None else 1 - busy
    launching = busy is not None and busy < _LAUNCH_BOUND_BUSY
    if min(fetching, idle) > INPUT_BOUND_SHARE or (launching and fetching > idle / 2):
        if copying > waiting and measured.host_to_device_bytes:
            return Bottleneck.COPY, f"copying the batch to the GPU takes {format_percent(copying)} of the step"
        copied = f", copying it {format_percent(copying)}" if copying > _LEAST_COPYING else ""
        return Bottleneck.INPUT, f"waiting for data takes {format_percent(waiting)} of the step{copied}"
    if launching:
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


def _arithmetic_or_memory(measured: Profile) -> tuple[Bottleneck | None, str]:
    """The nearer of a busy device's two limits: arithmetic or memory traffic."""
    share, moved = step_roof_share(measured), step_copy_share(measured)
    products = f"{format_percent(share)} of this machine's {measured.ceiling_dtype} matrix-product rate"
    products = "no matrix product" if measured.flops_per_step == 0 else products
    copies = "" if moved is None else f"{format_percent(moved)} of the rate of a copy in memory"
    if share is None and moved is None and measured.flops_per_step != 0:
        return None, "how much a step computes and moves, or how fast this machine does either, was not measured"
    if max(share or 0.0, 1.0 if moved is None else moved) < _FAR_SHARE:
        reached = " and ".join(filter(None, (products if share else "", copies)))
        return None, f"probably many small operators, or other programs: the step reaches {reached}"
    if share is not None and (share >= _COMPUTE_BOUND_SHARE or (moved is not None and share > moved)):
        return Bottleneck.COMPUTE, f"the step reaches {products}"
    return Bottleneck.MEMORY, f"the device is busy and the step reaches {copies or f'only {products}'}"


# Operators that only allocate or look at a tensor's description move nothing.
_MOVES_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
# Operators that read (or in place, write) only as much of their first tensor as the others are large.
_PICK = {"embedding", "_embedding_bag", "gather", "index", "index_select", "take"}
_PLACE = {"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_"}
# Operators that overwrite their first tensor without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "_foreach_zero_", "_foreach_copy_"}
# The last operators of torch.tensor(): its numbers come from Python and are copied to the device each time.
_FROM_PYTHON = {"lift_fresh", "lift_fresh_copy", "lift"}


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of every operator's tensors: inputs read once, outputs and changed tensors written once.

    It ignores caches and workspaces, and counts nothing for views. ``host_made`` counts copies to another device of
    tensors that were created on the host without input, or computed from such tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved_bytes = 0
        self.host_made = 0
        # Kept alive, so that no other tensor gets the same id.
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and add its bytes."""
        result = func(*args, **(kwargs or {}))
        name, given, made = func.overloadpacket.__name__, _tensors((args, kwargs)), _tensors(result)
        if not (func.is_view or name in _MOVES_NOTHING):
            self.moved_bytes += _moved(func, name, args, kwargs or {}, result)
        if any(id(tensor) in self._made for tensor in given):
            if all(tensor.device.type == "cpu" for tensor in given):  # results on the device are copies
                self.host_made += sum(tensor.device.type != "cpu" for tensor in made)
            elif name == "copy_" and given[0].device.type != "cpu":  # device[...] = host
                self.host_made += 1
        if name not in _FROM_PYTHON and all(id(tensor) in self._made for tensor in given):
            self._made |= {id(tensor): tensor for tensor in made if tensor.device.type == "cpu"}
        return result


def _moved(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    given = _tensors((args, kwargs))
    written_to = [
        args[index] if index < len(args) else kwargs.get(argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    changed = _tensors(written_to)
    made = [tensor for tensor in _tensors(result) if not any(tensor is other for other in given)]
    written = sum(map(_bytes, made)) + sum(map(_bytes, changed))
    if name in _OVERWRITE:
        given = [tensor for tensor in given if not any(tensor is other for other in changed)]
    others = sum(map(_bytes, given[1:]))
    if name in _PICK and given:
        return written + others + min(_bytes(given[0]), written)
    if name in _PLACE and given:
        return others + 2 * min(_bytes(given[0]), others)
    return written + sum(map(_bytes, given))


def _tensors(values: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, each once."""
    return list({id(value): value for value in tree_leaves(values) if isinstance(value, torch.Tensor)}.values())


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements; for an expanded tensor, of its actual storage."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else 0


_REASONS_SHOWN = 3
_LONGEST_REASON = 120
_LIMIT = "recompile limit exceeded"
_SAYS_WHY = "TORCH_LOGS=recompiles shows the reasons"


def compiled_frames() -> int:
    """The number of frames that have been compiled in this process."""
    return int(counters["frames"]["total"])


def compilation_notes(warm: int) -> tuple[str, ...]:
    """Notes on compilation in this process. ``warm`` is the number of compiled frames at the end of the warm-up."""
    frames = compiled_frames()
    if not frames:
        return ()
    notes = []
    problems = {**counters["graph_break"], **counters["unimplemented"]}
    lines = [problem.strip().partition("\n")[0] for problem in problems if _LIMIT not in problem]
    breaks = [textwrap.shorten(line, _LONGEST_REASON, placeholder=" …") for line in lines]
    if count := max(len(breaks), len(counters["resumes"])):
        distinct = format_first(list(dict.fromkeys(filter(None, breaks))), _REASONS_SHOWN, "; ")
        notes.append(f"{counted(count, 'graph break')}{f': {distinct}' if distinct else ''}")
    if again := frames - warm:
        times = "once" if again == 1 else f"{again} times"
        notes.append(f"recompiled {times} after the warm-up: {_SAYS_WHY}")
    if len(breaks) < len(problems):
        notes.append(
            f"the compiler gave up on a function that it had compiled too often ({_SAYS_WHY}); it runs eagerly: "
            "values that change from step to step belong into tensors"
        )
    return tuple(notes)
