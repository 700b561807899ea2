"""Scripted sessions of the sample's ResNet-50, with more trials than the sample has; some names look like markup."""

from collections.abc import Iterable
from dataclasses import replace

from facts import GIB, GPU_UUID
from sample_session import (
    H200_NOISE,
    SAMPLE_FINDINGS,
    baseline_of,
    cpu_history,
    cpu_machine,
    detailed_baseline,
    detailed_history,
    detailed_profile,
    failed_trial,
    h200_machine,
    recommended,
    resnet_facts,
    resnet_profile,
    resnet_stack,
    resnet_trials,
    result_of,
    sample_history,
    trial_of,
)

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.events import Event
from advisor.judging.objective import Goal
from advisor.records import Block
from advisor.records.hardware import GpuReading, HostSample
from advisor.records.kinds import Numerics, Objective, Outcome
from advisor.records.trials import Comparison, GpuReadings, NumericsResult, Recommendation, TrialRecord, TrialResult
from advisor.records.workload import Facts, OperatorRow, SyncPlace

READING = ((GpuReading(GPU_UUID, 97, 9 * GIB, 140 * GIB, 51, 486.0, 1980),), HostSample(35.0, 12 * GIB, 128 * GIB))
HARDWARE = h200_machine()
NOTE = "the weights are random: no [pretrained] weights were asked for"
RESNET = replace(resnet_facts(HARDWARE).workload, notes=(NOTE,))
READS_LOSS = "total += loss.item()  # [red]"
PROFILE = replace(
    detailed_profile(),
    operators=(*resnet_profile().operators, OperatorRow("aten::copy_", 4.5, 0.05, 1.1)),
    trace_path="/nowhere/baseline-trace.json.gz",
    sync_places=(SyncPlace("train.py", 41, READS_LOSS, 1.0, 19.4), SyncPlace("", 0, "the backward pass", 1.0, None)),
)
FOUND = (replace(SAMPLE_FINDINGS[1], text=READS_LOSS), replace(SAMPLE_FINDINGS[0], recipe="batch_size"))
READ = events.SourceRead(("train.py",), FOUND, ("deploy.ipynb could not be read: no notebook",))


def on_gpu(record: TrialRecord, energy_j: float, **changes: object) -> TrialRecord:
    """The record with energy and the GPU's readings, and these changes of its result."""
    readings = {"gpu": GpuReadings(51, 1980, 486.0), "energy_j_per_sample": energy_j, **changes}
    return replace(record, result=replace(record.result, **readings), confirmed=True)


BASELINE = detailed_baseline(baseline_of(26.31, 64, H200_NOISE, reserved=9.13))
SAMPLE = {record.candidate.recipe: record for record in resnet_trials(BASELINE)}
CLOSE = NumericsResult(Numerics.CLOSE, Numerics.CLOSE, 1e-5, "the first 8 losses are not bit-equal")
CHANGED = NumericsResult(Numerics.CHANGED, Numerics.CHANGED, 0.21, "the first 8 losses are not bit-equal")

CONTROL, ZERO_GRAD, BENCHMARK = SAMPLE["control"], SAMPLE["zero_grad"], SAMPLE["cudnn_benchmark"]
LAST = on_gpu(SAMPLE["channels_last"], 0.181)
AUTOCAST = on_gpu(SAMPLE["autocast"], 0.171, gpu=GpuReadings(51, 1980, 486.0, ("power cap",)))
TF32 = trial_of("tf32", "precision.float32_matmul", "high", BASELINE, 25.77, (1.021, 1.015, 1.027), CLOSE)
WORSE = replace(
    SAMPLE["fused_optimizer"],
    numerics=NumericsResult(Numerics.CLOSE, Numerics.EXACT, 2.2e-7, "the weights after the first step differ"),
    confirmed=True,
)
WORKERS = on_gpu(
    trial_of("num_workers", "data.num_workers", 4, BASELINE, 25.95, (1.014, 1.01, 1.018), None),
    0.246,
    disturbed="another process (pid 911, python) used up to 34 % of the GPU while it was timed",
    notes=(
        "4 workers on 16 cores [/]",
        "the gradient scaler skipped 2 of the first 8 updates; its scale settled at 16384",
    ),
    skipped_steps=2,
)
REFUSED = "SGD cannot be captured: [capturable] is not offered by this optimizer"
REFUSED = TrialResult(Outcome.FAILED, REFUSED, "AdamW and Adam take capturable=True.")
GRAPH = failed_trial("step_graph", "step.cuda_graph", True, REFUSED)
BATCH = trial_of(
    "batch_size", "data.batch_size", 256, BASELINE, 90.49, (1.163, 1.151, 1.175), CHANGED, samples=256, reserved=34.6
)
BATCH_DOUBLED = SAMPLE["batch_size"]
FULL = TrialResult(Outcome.OUT_OF_MEMORY, "tried to allocate 48.0 GiB")
BATCH_BIG = failed_trial("batch_size", "data.batch_size", 4096, FULL)
MODE = "max-autotune-no-cudagraphs"
COMPILE = trial_of("compile", "compile.mode", MODE, BASELINE, 20.49, (1.284, 1.272, 1.296), CLOSE, 41.5, reserved=7.4)

RECORDS = (
    *(CONTROL, LAST, AUTOCAST, TF32, WORSE, WORKERS, BENCHMARK, ZERO_GRAD, GRAPH),
    *(BATCH, BATCH_DOUBLED, BATCH_BIG, COMPILE),
)
SKIPPED = {
    "float8": "needs torchao, which is not installed: pip install torchao",
    "inference_mode": "applies to inference only; this session measures training",
    "pin_memory": "the copy to the device is 3.4 % of the step and overlaps already",
    "prefetch": "data.num_workers is 0, so there is nothing to prefetch",
}
CONSENT = tuple(record.candidate.name for record in RECORDS if record.candidate.recipe == "batch_size")
RUNNING = BATCH.candidate.name

STACK = resnet_stack(BASELINE, confirmed=True)
STACK = replace(
    STACK,
    settings={**STACK.settings, "compile.mode": MODE},
    dropped={"data.num_workers": "within the noise once the rest is on"},
)
SMALL_STACK = replace(
    STACK,
    settings={**AUTOCAST.settings, "memory.activation_checkpointing": "blocks"},
    result=result_of(27.96, 64, reserved=3.1),
    comparison=Comparison(0.941, 0.936, 0.946, paired=True),
    break_even_steps=None,
    step_ms=27.96,
    samples_per_s=64 / 27.96e-3,
    dropped={},
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
        events.TrialStarted(RUNNING, ""),
        events.TrialActivity(RUNNING, "warming up"),
        events.ProgressMade(0.62, 74.0),
    ]


def measuring() -> list[Event]:
    """The blocks of a trial come in."""
    name = COMPILE.candidate.name
    blocks = (events.BlockTimed(name, step_ms) for step_ms in (31.0, 26.4, 25.4, 25.3, 25.5))
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
    late = TrialResult(Outcome.SKIPPED, "it needs about 17 s")
    untried = failed_trial("tf32", "precision.float32_matmul", "medium", late)
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
        events.TrialStarted("combination without autocast", "/nowhere/drop.log", 12.0),
        events.TrialEnded("combination without autocast", Outcome.MEASURED, "", 19.6, 6 * GIB, 11.2),
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


# Sessions of all kinds, by a name: running and finished, by speed and by memory, on a GPU and without one.
SESSIONS = {
    "running": to_trials(),
    "finished": whole(),
    "contributions": contributed(),
    "decided": decided(),
    "memory": by_memory(),
    "cpu": cpu_history(),
    "sample": sample_history(),
    "detailed": detailed_history(),
}
