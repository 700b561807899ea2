"""Recorded sessions as lists of events: ResNet-50 training on an H200, the demo on a CPU, a failed and a cancelled one.

The figures are made up within what such machines measure. For tests of whatever reads a session.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from sample_parts import (
    CPU_NOISE,
    DEMO_SKIPPED,
    GIB,
    H200_NOISE,
    RESNET_SKIPPED,
    SAMPLE_FINDINGS,
    baseline_of,
    cpu_machine,
    demo_facts,
    demo_profile,
    demo_trials,
    detailed_baseline,
    detailed_profile,
    detailed_trials,
    h200_machine,
    ranked_of,
    resnet_combinations,
    resnet_facts,
    resnet_profile,
    resnet_stack,
    resnet_trials,
    result_of,
    told_of,
)

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.experiment.state import SessionState
from advisor.judging.objective import Goal
from advisor.records import (
    Comparison,
    Facts,
    Numerics,
    NumericsResult,
    Outcome,
    Profile,
    StackRecord,
    TargetSpec,
    TrialRecord,
)


def sample_history() -> list[events.Event]:
    """A finished session: ResNet-50 training on an H200 with a DataLoader, batch 64, Adam."""
    hardware, baseline = h200_machine(), baseline_of(26.31, 64, H200_NOISE, reserved=9.13)
    facts, profile = resnet_facts(hardware), resnet_profile()
    trials = resnet_trials(baseline)
    return [
        events.GoalSet(Goal()),
        events.HardwareFound(hardware),
        events.SourceRead(
            ("train.py", "data.py"), SAMPLE_FINDINGS, ("data.py cannot be parsed: line 3: invalid syntax",)
        ),
        events.StageStarted("baseline"),
        events.FactsFound(facts),
        events.TrialStarted("baseline", "/tmp/sample/baseline.log"),
        events.TrialActivity("baseline", "measuring"),
        events.BaselineMeasured(baseline),
        events.FactsFound(Facts(hardware, facts.workload, profile, facts.versions)),
        events.TrialsPlanned(tuple(trial.candidate for trial in trials), dict(RESNET_SKIPPED)),
        events.StageStarted("alone"),
        *told_of(trials),
        events.StageStarted("search"),
        *resnet_combinations(),
        events.StackMeasured(resnet_stack(baseline, confirmed=False)),
        events.StageStarted("confirmation"),
        events.StackMeasured(resnet_stack(baseline, confirmed=True)),
        events.Ranked(ranked_of(trials, {"precision.autocast", "model.memory_format", "optimizer.implementation"})),
        events.Said("cudnn_benchmark cost 11.9 s of warm-up and gained nothing."),
        events.Decided("fused_optimizer", Decision.ACCEPTED),
        events.TrialEnded("baseline, again", Outcome.MEASURED, "", 10.0, 2**30, 3.0),
        events.Paused(True),
        events.Paused(False),
        events.ProgressMade(1.0, 0.0),
        events.StageStarted("done"),
        events.SessionFinished(cancelled=False, session_s=143.2),
    ]


def detailed_history() -> list[events.Event]:
    """The H200 session with all that a measurement can tell: clocks, ceilings, GPU readings, energy, repeats, notes."""
    told: list[events.Event] = []
    for event in sample_history():
        match event:
            case events.BaselineMeasured(baseline):
                told.append(events.BaselineMeasured(detailed_baseline(baseline)))
            case events.FactsFound(Facts(profile=Profile()) as facts):
                peak = round(0.91 * 9.13 * GIB)
                told.append(events.FactsFound(replace(facts, profile=detailed_profile(), peak_allocated_bytes=peak)))
            case events.TrialMeasured(record) if record.candidate.recipe == "fused_optimizer":
                told.append(events.TrialMeasured(replace(record, confirmed=True)))
            case events.TrialMeasured(record) if record.candidate.recipe == "autocast":
                result = replace(record.result, energy_j_per_sample=0.198)
                told.append(events.TrialMeasured(replace(record, result=result)))
            case events.StackMeasured(record):
                result = replace(record.result, energy_j_per_sample=0.129)
                told.append(events.StackMeasured(replace(record, result=result)))
            case events.StageStarted("confirmation"):
                told += [event, *(events.TrialMeasured(record) for record in detailed_trials())]
            case _:
                told.append(event)
    warning = events.Said("this machine was noisy: end other programs and run again", "warning")
    return [*told[:-1], warning, told[-1]]


def cpu_history() -> list[events.Event]:
    """A finished session: the demo's small MLP on eight CPU cores, with one batch and no loader."""
    hardware, baseline = cpu_machine(), baseline_of(3.42, 128, CPU_NOISE, reserved=0.61)
    trials = demo_trials(baseline)
    facts = demo_facts(hardware)
    stack = StackRecord(
        settings={"cpu.threads": 4},
        result=result_of(2.87, 128, reserved=0.61),
        comparison=Comparison(1.192, 1.171, 1.214, paired=True),
        numerics=NumericsResult(Numerics.EXACT, Numerics.EXACT, 0.0, "the first 8 losses are bit-equal"),
        break_even_steps=0,
        step_ms=2.87,
        samples_per_s=128 / 2.87e-3,
        confirmed=True,
    )
    return [
        events.HardwareFound(hardware),
        events.StageStarted("baseline"),
        events.FactsFound(facts),
        events.BaselineMeasured(baseline),
        events.FactsFound(Facts(hardware, facts.workload, demo_profile(), facts.versions)),
        events.TrialsPlanned(tuple(trial.candidate for trial in trials), dict(DEMO_SKIPPED)),
        *told_of(trials),
        events.StackMeasured(stack),
        events.Ranked(ranked_of(trials, {"cpu.threads"})),
        events.SessionFinished(cancelled=False, session_s=21.7),
    ]


def several_gpus_history() -> list[events.Event]:
    """The session on a ResNet, with the search over two GPUs behind it."""
    one = ScalingRow("one GPU", {}, 1, step_ms=60.0, samples_per_s=1066.0, global_batch=64, batch_per_gpu=64, runs=3)
    ddp = ScalingRow(
        "ddp",
        {"parallel.strategy": "ddp"},
        2,
        global_batch=64,
        batch_per_gpu=32,
        step_ms=33.0,
        samples_per_s=1939.0,
        speedup=1.82,
        ci_low=1.79,
        ci_high=1.85,
        exposed_ms=1.1,
        straggler_share=0.01,
        peak_reserved_bytes=(5 * GIB, 5 * GIB),
        rank_ms=(31.2, 31.4),
        loss_difference=2e-4,
        runs=3,
    )
    failed = ScalingRow("fully_shard", {"parallel.strategy": "fully_shard"}, 2, reason="rank 0: CUDA out of memory")
    record = ScalingRecord(
        2,
        "cuda",
        carried={"precision.autocast": "bfloat16"},
        left_out={"step.cuda_graph": "step.cuda_graph records one GPU's step, without the exchange of gradients"},
        rows=(one, ddp, failed),
        best="ddp",
        settings={"parallel.strategy": "ddp"},
        passed_over={"parallel.length_bucketing": "the first batches are of one shape"},
        confirmed=True,
    )
    *before, last = sample_history()
    return [*before, events.ScalingMeasured(record), last]


def failed_history() -> list[events.Event]:
    """A session whose target could not be loaded."""
    return [
        events.HardwareFound(cpu_machine()),
        events.StageStarted("baseline"),
        events.SessionFailed("mymodel has no 'build'", "It defines: make, train.", "", 3),
        events.SessionFinished(cancelled=False, session_s=1.4),
    ]


def cancelled_history() -> list[events.Event]:
    """The H200 session, interrupted in its second trial: no stack, no ranking."""
    told = sample_history()
    second = [place for place, event in enumerate(told) if isinstance(event, events.TrialStarted)][2]
    return [*told[: second + 1], events.SessionFinished(cancelled=True, session_s=19.0)]


def sample_request() -> Request:
    """What was asked for in :func:`sample_history`."""
    return Request(target=TargetSpec("mymodel:build", "/home/ada/vision"))


def cpu_request() -> Request:
    """What was asked for in :func:`cpu_history`."""
    return Request(target=TargetSpec("demo", "/home/ada"), budget_s=30.0)


def on_the_stack(record: TrialRecord, contribution: Comparison | None = None) -> TrialRecord:
    """The record as of a candidate that was measured with another setting: the whole of them is 9.87 times as fast."""
    result = replace(record.result, peak_reserved_bytes=987 * 2**30, warmup_s=987.0, prepare_s=None)
    return replace(
        record,
        settings={**record.settings, "other.setting": True},
        comparison=Comparison(9.87, 9.8, 9.9),
        contribution=contribution,
        result=result,
        step_ms=98.7,
        samples_per_s=9876.0,
        break_even_steps=987,
        confirmed=True,
    )


CONTRIBUTION = Comparison(1.2, 1.15, 1.25)


def stacked_state(contribution: Comparison | None = None) -> SessionState:
    """The H200 session, whose channels_last was measured with another setting only."""
    state = SessionState.of(sample_history())
    name = "channels_last=channels_last"
    record = state.trials[name] = on_the_stack(state.trials[name], contribution)
    state.recommendations = tuple(
        replace(item, record=record) if item.record.candidate.name == name else item for item in state.recommendations
    )
    return state


def journaled(history: Sequence[events.Event], request: Request | None = None) -> str:
    """The id of a session that is recorded on disk, with these events."""
    with closing(Journal.create(request or sample_request())) as journal:
        for event in history:
            journal.record(event)
    return journal.session_id
