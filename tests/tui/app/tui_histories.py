"""Scripted sessions, made of real events, of a ResNet-50 on an H200; some of their names look like markup."""

from collections.abc import Iterable
from dataclasses import replace

from facts import GIB, GPU_UUID
from sample_parts import (
    SAMPLE_FINDINGS,
    cpu_machine,
    detailed_profile,
    failed_trial,
    h200_machine,
    recommended,
    resnet_facts,
    result_of,
    trial_of,
)

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.events import Event
from advisor.judging.objective import Goal
from advisor.records import (
    BaselineRecord,
    Block,
    Comparison,
    Facts,
    GpuReading,
    GpuReadings,
    HostSample,
    Numerics,
    NumericsResult,
    Objective,
    OperatorRow,
    Outcome,
    Recommendation,
    StackRecord,
    SyncPlace,
    TrialRecord,
    TrialResult,
    Value,
)
from advisor.tui.widgets.gauges import Reading

READING = Reading(
    (GpuReading(GPU_UUID, 97, 9 * GIB, 140 * GIB, 51, 486.0, 1980),), HostSample(35.0, 12 * GIB, 128 * GIB)
)
HARDWARE = h200_machine()
RESNET = resnet_facts(HARDWARE).workload
NOTE = "the weights are random: no [pretrained] weights were asked for"
RESNET = replace(RESNET, current={**RESNET.current, "data.num_workers": 0}, notes=(NOTE,))
READS_LOSS = "total += loss.item()  # [red]"
PROFILE = replace(
    detailed_profile(),
    operators=(
        OperatorRow("aten::cudnn_convolution", 53, 2.1, 8.9),
        OperatorRow("aten::convolution_backward", 53, 3.4, 15.2),
        OperatorRow("aten::native_batch_norm_backward", 53, 1.2, 3.1),
        OperatorRow("aten::copy_", 4.5, 0.05, 1.1),
    ),
    trace_path="/nowhere/baseline-trace.json.gz",
    sync_places=(SyncPlace("train.py", 41, READS_LOSS, 1.0, 19.4), SyncPlace("", 0, "the backward pass", 1.0, None)),
)
FOUND = (replace(SAMPLE_FINDINGS[1], text=READS_LOSS), replace(SAMPLE_FINDINGS[0], recipe="batch_size"))
READ = events.SourceRead(("train.py",), FOUND, ("deploy.ipynb could not be read: no notebook",))


def result(step_ms: float, memory_gib: float, warmup_s: float = 0.8) -> TrialResult:
    """A measured trial."""
    return result_of(step_ms, 64, reserved=memory_gib, warmup=warmup_s)


def on_gpu(measured_result: TrialResult, energy_j: float, **readings: object) -> TrialResult:
    """The same with energy and the GPU's readings."""
    gpu = replace(GpuReadings(51, 1980, 486.0), **readings)
    return replace(measured_result, energy_j_per_sample=energy_j, gpu=gpu)


def measured(
    recipe: str,
    key: str,
    value: Value,
    speedup: float,
    memory_gib: float,
    *,
    half: float = 0.012,
    numerics: Numerics = Numerics.EXACT,
    difference: float | None = 0.0,
    warmup_s: float = 0.8,
) -> TrialRecord:
    """A candidate's record with a speed-up."""
    words = "bit-equal to the baseline's" if numerics is Numerics.EXACT else "not bit-equal"
    compared = NumericsResult(numerics, numerics, difference, f"the first 8 losses are {words}")
    interval = speedup, speedup - half, speedup + half
    return trial_of(
        recipe, key, value, BASELINE, BASELINE.step_ms / speedup, interval, compared, warmup_s, reserved=memory_gib
    )


def failed(recipe: str, key: str, value: Value, outcome: Outcome, reason: str, *, hint: str = "") -> TrialRecord:
    """A candidate's record without a measurement."""
    return failed_trial(recipe, key, value, TrialResult(outcome, reason, hint))


BASELINE = BaselineRecord(on_gpu(result(32.6, 9.1), 0.248), 32.6, 1963.2, half_width=0.006)

AUTOCAST = measured("autocast", "precision.autocast", "bfloat16", 1.118, 6.2)
AUTOCAST = replace(
    AUTOCAST,
    result=on_gpu(AUTOCAST.result, 0.171, throttle_reasons=("power cap",)),
    numerics=NumericsResult(
        Numerics.CLOSE, Numerics.CLOSE, 3.1e-3, "the losses of the first 5 steps differ by 3.1e-03", 3.0e-3, 4.1e-6
    ),
)
LAST = measured(
    "channels_last", "model.memory_format", "channels_last", 1.391, 9.3, numerics=Numerics.CLOSE, difference=8e-6
)
LAST = replace(LAST, result=on_gpu(LAST.result, 0.181), confirmed=True)
TF32 = measured(
    "tf32", "precision.float32_matmul", "high", 1.021, 9.1, half=0.006, numerics=Numerics.CLOSE, difference=1e-5
)
FUSED = measured("fused_optimizer", "optimizer.implementation", "fused", 1.012, 9.1, half=0.003)
WORSE = replace(
    FUSED,
    numerics=NumericsResult(Numerics.CLOSE, Numerics.EXACT, 2.2e-7, "the weights after the first step differ"),
    confirmed=True,
)
BENCHMARK = measured("cudnn_benchmark", "backends.cudnn_benchmark", True, 1.002, 9.8, half=0.004, warmup_s=13.2)
WORKERS = measured("num_workers", "data.num_workers", 4, 1.014, 9.1, half=0.004)
WORKERS = replace(
    WORKERS,
    result=replace(
        on_gpu(WORKERS.result, 0.246),
        disturbed="another process (pid 911, python) used up to 34 % of the GPU while it was timed",
        notes=(
            "4 workers on 16 cores [/]",
            "the gradient scaler skipped 2 of the first 8 updates; its scale settled at 16384",
        ),
        skipped_steps=2,
    ),
)
GRAPH = failed(
    "step_graph",
    "step.cuda_graph",
    True,
    Outcome.FAILED,
    "SGD cannot be captured: [capturable] is not offered by this optimizer",
    hint="AdamW and Adam take capturable=True.",
)


def of_batch(size: int, speedup: float, memory_gib: float) -> TrialRecord:
    """A batch size's record; its speed-up is in samples."""
    record = measured(
        "batch_size", "data.batch_size", size, speedup, memory_gib, numerics=Numerics.CHANGED, difference=0.21
    )
    step_ms = BASELINE.step_ms * size / 64 / speedup
    return replace(
        record, result=replace(record.result, batch_size=size), step_ms=step_ms, samples_per_s=1e3 * size / step_ms
    )


BATCH = of_batch(256, 1.163, 34.6)
BATCH_DOUBLED = of_batch(128, 1.119, 17.9)
BATCH_BIG = failed("batch_size", "data.batch_size", 4096, Outcome.OUT_OF_MEMORY, "tried to allocate 48.0 GiB")
COMPILE = measured(
    "compile",
    "compile.mode",
    "max-autotune-no-cudagraphs",
    1.284,
    7.4,
    numerics=Numerics.CLOSE,
    difference=4e-6,
    warmup_s=41.5,
)
ZERO_GRAD = measured("zero_grad", "step.zero_grad", "zeros", 0.981, 9.1, half=0.004)
CONTROL = measured("control", "control.noop", True, 1.001, 9.1, half=0.003)

RECORDS = (
    CONTROL,
    LAST,
    AUTOCAST,
    TF32,
    WORSE,
    WORKERS,
    BENCHMARK,
    ZERO_GRAD,
    GRAPH,
    BATCH,
    BATCH_DOUBLED,
    BATCH_BIG,
    COMPILE,
)
SKIPPED = {
    "float8": "needs torchao, which is not installed: pip install torchao",
    "inference_mode": "applies to inference only; this session measures training",
    "pin_memory": "the copy to the device is 3.4 % of the step and overlaps already",
    "prefetch": "data.num_workers is 0, so there is nothing to prefetch",
}

CONSENT = tuple(record.candidate.name for record in RECORDS if record.candidate.recipe == "batch_size")

STACK = StackRecord(
    settings={
        "model.memory_format": "channels_last",
        "precision.autocast": "bfloat16",
        "compile.mode": "max-autotune-no-cudagraphs",
        "optimizer.implementation": "fused",
    },
    result=result(13.9, 5.2, 44.0),
    comparison=Comparison(2.345, 2.321, 2.366, paired=True),
    numerics=NumericsResult(Numerics.CLOSE, Numerics.CLOSE, 3.3e-3, ""),
    break_even_steps=2310,
    step_ms=13.9,
    samples_per_s=4604.3,
    confirmed=True,
    dropped={"data.num_workers": "within the noise once the rest is on"},
)

SMALL_STACK = StackRecord(
    settings={**AUTOCAST.settings, "memory.activation_checkpointing": "blocks"},
    result=result(34.7, 3.1),
    comparison=Comparison(0.941, 0.936, 0.946, paired=True),
    numerics=NumericsResult(Numerics.CLOSE, Numerics.CLOSE, 3.1e-3, ""),
    break_even_steps=None,
    step_ms=34.7,
    samples_per_s=1844.4,
    confirmed=True,
)

CHOSEN = (LAST, COMPILE, BATCH, AUTOCAST, TF32, WORKERS, WORSE)


def recommendations(records: Iterable[TrialRecord] = CHOSEN) -> tuple[Recommendation, ...]:
    """The records, ranked as they come."""
    return recommended(records, set(STACK.settings))


def start() -> list[Event]:
    """Up to the baseline of the ResNet-50."""
    return [
        events.HardwareFound(HARDWARE),
        events.StageStarted("baseline"),
        READ,
        events.TrialStarted("baseline", ""),
        events.TrialActivity("baseline", "loading"),
        events.FactsFound(Facts(HARDWARE, RESNET)),
        events.TrialActivity("baseline", "warming up"),
    ]


def to_trials() -> list[Event]:
    """In the middle of the trials."""
    half = RECORDS[:9]
    return [
        *start(),
        events.BaselineMeasured(BASELINE),
        events.FactsFound(Facts(HARDWARE, RESNET, PROFILE, {"torch": "2.8.0"})),
        events.StageStarted("alone"),
        events.TrialsPlanned(tuple(record.candidate for record in RECORDS), SKIPPED, CONSENT),
        *(
            event
            for record in half
            for event in (events.TrialStarted(record.candidate.name, ""), events.TrialMeasured(record))
        ),
        events.Ranked(recommendations((LAST, AUTOCAST, TF32))),
        events.TrialStarted(BATCH.candidate.name, ""),
        events.TrialActivity(BATCH.candidate.name, "warming up"),
        events.ProgressMade(0.62, 74.0),
    ]


def measuring() -> list[Event]:
    """The blocks of a trial come in."""
    name = COMPILE.candidate.name
    blocks = (events.BlockTimed(name, step_ms, 64) for step_ms in (31.0, 26.4, 25.4, 25.3, 25.5))
    began = events.TrialStarted(name, "", 12.0), events.TrialActivity(name, "measuring")
    return [*to_trials()[:-3], *began, *blocks, events.ProgressMade(0.62, 74.0)]


def whole() -> list[Event]:
    """The whole session of the ResNet-50."""
    return [
        *to_trials(),
        *(events.TrialMeasured(record) for record in RECORDS[9:]),
        events.StageStarted("confirmation"),
        events.StackMeasured(STACK),
        events.Ranked(recommendations()),
        events.ProgressMade(1.0, 0.0),
        events.StageStarted("done"),
        events.SessionFinished(False, 187.0),
    ]


def with_something_untried() -> list[Event]:
    """The whole session, with a trial that it had no time for."""
    untried = failed("tf32", "precision.float32_matmul", "medium", Outcome.SKIPPED, "it needs about 17 s")
    return [*whole(), events.TrialMeasured(untried)]


def by_memory() -> list[Event]:
    """The same workload in a session whose objective is memory: the stack is slower than the baseline."""
    return [
        events.GoalSet(Goal(Objective.MEMORY, memory_limit_bytes=8 * GIB)),
        *(event for event in whole() if not isinstance(event, events.StackMeasured | events.Ranked)),
        events.StackMeasured(SMALL_STACK),
        events.Ranked(recommendations((AUTOCAST, COMPILE))),
    ]


def failure() -> list[Event]:
    """A target that cannot be loaded, with text that looks like markup."""
    return [
        events.HardwareFound(cpu_machine()),
        events.SessionFailed(
            "mymodel has no 'build' [/]",
            "It defines: make, train. Write mymodel:make.",
            "Traceback (most recent call last):\n  File \"mymodel.py\", line 3\nKeyError: '[red]'",
            3,
        ),
    ]


def decided() -> list[Event]:
    """The whole session, after which compilation was rejected and a batch size accepted; nothing is measured yet."""
    return [*whole(), events.Decided("compile", Decision.REJECTED), events.Decided("batch_size", Decision.ACCEPTED)]


def contributed() -> list[Event]:
    """The whole session, which has left settings of the stack out: what each contributes is known."""
    known = {
        LAST.candidate.name: Comparison(1.298, 1.281, 1.314),
        AUTOCAST.candidate.name: Comparison(1.412, 1.391, 1.433),
        COMPILE.candidate.name: Comparison(1.236, 1.219, 1.252),
        WORSE.candidate.name: Comparison(1.003, 0.996, 1.009),
    }
    records = {record.candidate.name: record for record in RECORDS}
    apart = {name: replace(records[name], contribution=found) for name, found in known.items()}
    ranked = (apart[AUTOCAST.candidate.name], apart[LAST.candidate.name], apart[COMPILE.candidate.name], BATCH, TF32)
    return [
        *whole()[:-2],
        *(events.TrialMeasured(record) for record in apart.values()),
        events.TrialStarted("stack without autocast", "/nowhere/drop.log", 12.0),
        events.TrialEnded("stack without autocast", Outcome.MEASURED, "", 19.6, 6 * GIB, 11.2),
        events.Ranked(recommendations(ranked)),
        *whole()[-2:],
    ]


def timed() -> list[Event]:
    """The whole session, whose stack was confirmed in blocks that differ, and its phases timed."""
    drift = (0.985, 0.99, 0.995, 1.0, 1.0, 1.004, 1.01, 1.02, 1.05)
    blocks = tuple(Block(20, 1280, 20 * STACK.result.blocks[0].step_ms * share / 1e3) for share in drift)
    phases = {"data wait": 0.4, "host-to-device": 0.6, "captured step": 12.9}
    stack = replace(STACK, result=replace(STACK.result, blocks=blocks, phases=phases))
    return [*whole()[:-1], events.StackMeasured(stack), whole()[-1]]


def judged_nothing() -> list[Event]:
    """A session whose only trial failed."""
    return [
        *start(),
        events.BaselineMeasured(BASELINE),
        events.TrialsPlanned((GRAPH.candidate,), SKIPPED),
        events.TrialMeasured(GRAPH),
        events.StageStarted("done"),
        events.SessionFinished(False, 12.0),
    ]
