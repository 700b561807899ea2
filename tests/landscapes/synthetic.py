"""Makes synthetic landscapes, whose truth is known: ``python tests/landscapes/synthetic.py``.

Three kinds of workloads that a search has to tell apart: a step bound by the host, one bound by convolutions, and one
that waits for its loader. Each is a function from settings to seconds, sampled by the plan of recordings.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from facts import CONV, adamw_facts, gpu_facts, h200, host, loader_facts, sgd_facts

from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Block,
    Bottleneck,
    Facts,
    HabitRow,
    Hardware,
    Outcome,
    Phase,
    Profile,
    TrialResult,
    Value,
)
from landscapes.landscape import (
    DATA,
    SCHEMA,
    Conflict,
    Landscape,
    Run,
    Times,
    canonical,
    compile_key,
    is_compiled,
    is_graphed,
    sample_seconds,
    save,
)
from landscapes.plan import Wish, fastest_unsure, may_stack, plan, random_wishes

GIB = 2**30
_RANDOM_WISHES = 12
_BLOCK_SPREAD = 0.002
_MEASURE_S = 0.6

Truth = Callable[[Mapping[str, Value]], float]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A made-up workload: its facts, its step in ms, the speed-up of settings, and seconds of compiling and building.

    ``failure`` is how settings end that cannot run, None for those that can. ``spread`` is that of processes, in log
    units.
    """

    name: str
    facts: Facts
    step_ms: float
    speedup: Truth
    compile_s: float
    build_s: float = 0.3
    spread: float = 0.01
    failure: Callable[[Mapping[str, Value]], TrialResult | None] = lambda settings: None


def host_bound() -> Synthetic:
    """An MLP of many short kernels: captured 5x, compiled 1.1x; autocast pays once the step is captured."""

    def speedup(settings: Mapping[str, Value]) -> float:
        total = 1.0
        graphed = is_graphed(settings)
        if graphed:
            total *= 5.0
        if is_compiled(settings):
            total *= 1.4 if graphed else 1.1
        if _half(settings):
            total *= 1.5 if graphed else 0.7
        if settings.get("precision.float32_matmul", "highest") != "highest":
            total *= 1.2 if graphed and not _half(settings) else 1.0
        if settings.get("optimizer.implementation") == "fused":
            total *= 1.05 if graphed else 1.25
        return total

    phases = {
        Phase.DATA_WAIT: 0.01,
        Phase.HOST_TO_DEVICE: 0.02,
        Phase.ZERO_GRAD: 0.1,
        Phase.FORWARD: 0.9,
        Phase.LOSS: 0.05,
        Phase.BACKWARD: 1.2,
        Phase.OPTIMIZER: 0.6,
    }
    profile = _profile(2.8, phases, Bottleneck.LAUNCH, "the GPU is idle for 80 % of the step", busy=0.2, kernels=310)
    facts = gpu_facts(
        model="Sequential",
        families={"linear": 12, "layer_norm": 12},
        parameters=800_000,
        trainable_parameters=800_000,
        parameter_bytes=3_200_000,
        parameter_tensors=48,
        batch_size=256,
        batch_text="float32[256, 256], float32[256, 256]",
        loss="MSELoss",
        optimizer=adamw_facts(tensors=48),
        linear_shapes=((256, 256, 12),),
        profile=profile,
        hardware=_machine(),
    )
    return Synthetic("synthetic_host_bound", facts, 2.8, speedup, compile_s=11.0, build_s=0.05, spread=0.03)


def convnet() -> Synthetic:
    """A residual network: bf16 and channels-last 2x together, little apart; compiled 1.3x; cudnn.benchmark costs."""

    def speedup(settings: Mapping[str, Value]) -> float:
        total = 1.0
        half = _half(settings)
        last = settings.get("model.memory_format") == "channels_last"
        total *= {(True, True): 2.0, (True, False): 1.12, (False, True): 1.05, (False, False): 1.0}[half, last]
        if is_compiled(settings):
            total *= 1.3 if settings.get("compile.scope") != "regional" else 1.1
        if str(settings.get("compile.mode")).startswith("max-autotune"):
            total *= 1.03
        if is_graphed(settings):
            total *= 1.02
        if settings.get("backends.cudnn_benchmark"):
            total *= 0.9
        if settings.get("optimizer.implementation") == "fused":
            total *= 1.02
        if settings.get("precision.float32_matmul", "highest") != "highest" and not half:
            total *= 1.03
        return total

    phases = {
        Phase.DATA_WAIT: 0.02,
        Phase.HOST_TO_DEVICE: 0.1,
        Phase.ZERO_GRAD: 0.3,
        Phase.FORWARD: 8.0,
        Phase.LOSS: 0.1,
        Phase.BACKWARD: 15.0,
        Phase.OPTIMIZER: 1.2,
    }
    profile = _profile(24.0, phases, Bottleneck.COMPUTE, "the step reaches 45 % of the peak", busy=0.97, kernels=900)
    facts = gpu_facts(
        model="ResNet",
        families={**CONV, "conv2d": 53, "batch_norm": 53},
        parameters=25_000_000,
        trainable_parameters=25_000_000,
        parameter_bytes=100_000_000,
        parameter_tensors=161,
        batch_size=64,
        batch_text="float32[64, 3, 224, 224], int64[64]",
        optimizer=sgd_facts(tensors=161),
        profile=profile,
        hardware=_machine(),
    )

    def failure(settings: Mapping[str, Value]) -> TrialResult | None:
        if int(settings.get("data.batch_size", 0)) <= 128:
            return None
        return TrialResult(Outcome.OUT_OF_MEMORY, "CUDA out of memory", startup_s=0.05, build_s=0.3, wall_s=2.0)

    return Synthetic("synthetic_convnet", facts, 24.0, speedup, compile_s=35.0, spread=0.004, failure=failure)


def loader_bound() -> Synthetic:
    """A step that waits for its loader: workers 3x and more, then settings of the step matter."""

    def speedup(settings: Mapping[str, Value]) -> float:
        workers = int(settings.get("data.num_workers", 0))
        load_ms = 60.0 / workers if workers else 60.0
        step_ms = 18.0
        if _half(settings):
            step_ms /= 1.4
        if settings.get("model.memory_format") == "channels_last":
            step_ms /= 1.15
        if is_compiled(settings):
            step_ms /= 1.25
        if settings.get("data.pin_memory"):
            step_ms -= 1.0
        if settings.get("optimizer.implementation") == "fused":
            step_ms -= 0.5
        if is_graphed(settings):
            step_ms /= 1.05
        # Without workers the batch is loaded between steps, with them beside.
        total_ms = load_ms + step_ms if not workers else max(load_ms, step_ms) + 0.05 * min(load_ms, step_ms)
        return 78.0 / total_ms

    phases = {
        Phase.DATA_WAIT: 60.0,
        Phase.HOST_TO_DEVICE: 1.5,
        Phase.ZERO_GRAD: 0.2,
        Phase.FORWARD: 5.5,
        Phase.LOSS: 0.1,
        Phase.BACKWARD: 9.5,
        Phase.OPTIMIZER: 1.2,
    }
    profile = _profile(78.0, phases, Bottleneck.INPUT, "data wait is 77 % of the step", busy=0.2, kernels=400)
    facts = gpu_facts(
        model="ResNet",
        families=dict(CONV),
        parameters=11_000_000,
        trainable_parameters=11_000_000,
        parameter_bytes=44_000_000,
        parameter_tensors=62,
        batch_size=64,
        batch_text="float32[64, 3, 224, 224], int64[64]",
        optimizer=sgd_facts(tensors=62),
        loader=loader_facts(batch_size=64, length=40),
        profile=profile,
        hardware=_machine(),
    )

    return Synthetic("synthetic_loader_bound", facts, 78.0, speedup, compile_s=24.0, spread=0.02)


SYNTHETIC = (host_bound, convnet, loader_bound)


def make(synthetic: Synthetic, *, seed: int = 0) -> Landscape:
    """The landscape that recording such a workload would give."""
    catalog, facts = load_catalog(), synthetic.facts
    draw = random.Random(seed)
    sampler = _Sampler(synthetic, catalog, draw)
    made = plan(catalog, facts)
    wishes = [Wish(Settings({}), 4), *made.first, *made.plain, *made.compiled, *made.rest]
    wishes += itertools.islice(random_wishes(catalog, made, seed), _RANDOM_WISHES)
    runs: list[Run] = []
    conflicts: list[Conflict] = []
    for wish in wishes:
        reason = catalog.conflict(wish.settings)
        if reason:
            conflicts.append(Conflict(dict(wish.settings), reason))
        else:
            runs += [sampler.run(wish.settings) for _ in range(wish.processes)]
    while (unsure := fastest_unsure(_usable(catalog, facts, runs))) is not None:
        runs.append(sampler.run(unsure))
    return Landscape(
        SCHEMA,
        synthetic.name,
        "made_up.py:build",
        None,
        facts.workload.mode,
        facts.hardware,
        facts.workload,
        facts.versions,
        facts.profile,
        Times(3.5, 4.5, synthetic.build_s, synthetic.build_s + 0.5, 0.2, 4.0),
        reference=replace(sampler.run({}).result, blocks=(), wall_s=2.5),
        runs=tuple(runs),
        conflicts=tuple(conflicts),
    )


def _usable(catalog: Catalog, facts: Facts, runs: list[Run]) -> dict[Settings, list[float]]:
    found: dict[Settings, list[float]] = {}
    for run in runs:
        if run.result.measured and may_stack(catalog, facts, run.settings):
            kept = canonical(catalog, facts.workload, run.settings)
            found.setdefault(kept, []).append(sample_seconds(run.result))
    return found


class _Sampler:
    """Draws trials of a made-up workload; the first to compile some code is cold."""

    def __init__(self, synthetic: Synthetic, catalog: Catalog, draw: random.Random) -> None:
        self._of, self._catalog, self._draw = synthetic, catalog, draw
        self._compiled: set[Settings] = set()

    def run(self, settings: Mapping[str, Value]) -> Run:
        """One trial process."""
        kept = canonical(self._catalog, self._of.facts.workload, settings)
        failure = self._of.failure(kept)
        if failure is not None:
            return Run(dict(settings), failure)
        code = compile_key(kept)
        cold = code is not None and code not in self._compiled
        warmup_s = self._warm_up_s(kept, cold)
        if code is not None:
            self._compiled.add(code)
        return Run(dict(settings), self._measured(kept, warmup_s), cold)

    def _warm_up_s(self, settings: Settings, cold: bool) -> float:
        if compile_key(settings) is None:
            return 0.4
        cost = self._catalog.cost(settings)
        return self._of.compile_s * cost if cold else 1.0 + 0.2 * self._of.compile_s

    def _measured(self, settings: Settings, warmup_s: float) -> TrialResult:
        workload, draw = self._of.facts.workload, self._draw
        batch = int(settings.get("data.batch_size", 0)) or workload.batch_size or 1
        sample_s = self._of.step_ms / 1e3 / (workload.batch_size or 1) / self._of.speedup(settings)
        step_s = sample_s * batch * math.exp(draw.gauss(0, self._of.spread))
        steps = max(1, round(_MEASURE_S / 12 / step_s))
        blocks = tuple(
            Block(steps, steps * batch, steps * step_s * math.exp(draw.gauss(0, _BLOCK_SPREAD))) for _ in range(12)
        )
        rounding = self._catalog.rounding(settings)
        off = 0.2 * rounding + (1e-7 if is_compiled(settings) else 0.0)
        losses = tuple(2.3 * 0.99**step * (1 + off * (step + 1) / 5) for step in range(5))
        reserved = int((6 if rounding < 1e-3 else 4) * GIB * batch / (workload.batch_size or 1))
        return TrialResult(
            Outcome.MEASURED,
            batch_size=batch,
            blocks=blocks,
            peak_allocated_bytes=int(0.97 * reserved),
            peak_reserved_bytes=reserved + (GIB if is_graphed(settings) else 0),
            device_used_bytes=reserved + GIB,
            startup_s=0.05,
            build_s=0.3,
            prepare_s=0.05,
            warmup_s=warmup_s,
            warmup_steps=12,
            measuring_s=0.7,
            wall_s=1.2 + warmup_s,
            losses=losses,
            outputs=(1.0, *(math.sin(i) * (1 + off) for i in range(8))),
            weights=tuple(10.0 + 0.01 * step * (1 + off) for step in range(6)),
            parameters=workload.parameters,
        )


def _half(settings: Mapping[str, Value]) -> bool:
    """Whether products are in half precision."""
    half = settings.get("precision.autocast", "none") != "none"
    return half or settings.get("precision.weights", "float32") != "float32"


def _machine() -> Hardware:
    return Hardware(host=host(), gpus=(h200(),))


def _profile(
    step_ms: float, phases: dict[Phase, float], bottleneck: Bottleneck, evidence: str, *, busy: float, kernels: float
) -> Profile:
    return Profile(
        step_ms,
        {str(phase): ms for phase, ms in phases.items()},
        device_busy_share=busy,
        kernels_per_step=kernels,
        bottleneck=bottleneck,
        evidence=evidence,
        habits=(HabitRow("zero_grad", "none", 0.05, step_ms),),
        sync_places=(),
        host_made_tensors=0,
    )


def main() -> None:
    for kind in SYNTHETIC:
        landscape = make(kind())
        path = DATA / f"{landscape.name}.json.gz"
        save(landscape, path)
        measured = sum(run.result.measured for run in landscape.runs)
        print(f"{path.name}: {measured} runs, {len(landscape.conflicts)} conflicts, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
