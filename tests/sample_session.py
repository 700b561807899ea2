"""Recorded sessions as lists of events: ResNet-50 training on an H200, the demo on a CPU, a failed and a cancelled one.

The figures are made up within what such machines measure. For tests of whatever reads a session. Their parts (machines,
facts, profiles, trials) come after them.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from facts import GIB, IDLE, cpu_facts, gpu_facts, h200, host

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.experiment.state import SessionState
from advisor.figures.stats import break_even_steps
from advisor.judging.objective import Goal
from advisor.records import BaselineRecord, Block, Candidate, Combination, Comparison, GpuReadings, SyncPlace, Value
from advisor.records.hardware import Hardware
from advisor.records.kinds import Bottleneck, Numerics, Outcome
from advisor.records.trials import NumericsResult, Recommendation, StackRecord, TargetSpec, TrialRecord, TrialResult
from advisor.records.workload import (
    Ceilings,
    Facts,
    Finding,
    HabitRow,
    LoaderFacts,
    OperatorRow,
    OptimizerFacts,
    Profile,
)

H200_NOISE = 0.006
CPU_NOISE = 0.021
SAMPLE_FINDINGS = (
    Finding(
        "zero_grad",
        "train.py",
        33,
        "optimizer.zero_grad(set_to_none=False)",
        "zero_grad(set_to_none=False) fills the gradients with zeros",
        "call zero_grad() as it is: it drops the gradients",
        "zeros",
    ),
    Finding(
        "loss_sync",
        "train.py",
        41,
        "total += loss.item()",
        ".item() makes the host wait for the loss at every step",
        "read it every hundredth step",
        "every_step",
    ),
)
RESNET_SKIPPED = {
    "inference_mode": "applies to inference only; this session measures training",
    "num_workers": "data wait is 0.3 % of the step",
    "pad_dims": "no linear layer's number of outputs is off a multiple of 64",
    "threads": "applies to the CPU only; this session runs on a CUDA GPU",
}


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
    return [*told[:-1], events.Said("this machine was noisy: end other programs and run again", "warning"), told[-1]]


def cpu_history() -> list[events.Event]:
    """A finished session: the demo's small MLP on eight CPU cores, with one batch and no loader."""
    hardware, baseline = cpu_machine(), baseline_of(3.42, 128, CPU_NOISE, reserved=0.61)
    facts = demo_facts(hardware)
    same = NumericsResult(Numerics.EXACT, Numerics.EXACT, 0.0, "the first 8 losses are bit-equal")
    trials = [
        trial_of("control", "control.noop", True, baseline, 3.4, (1.006, 0.99, 1.019), same),
        trial_of("threads", "cpu.threads", 4, baseline, 2.86, (1.196, 1.17, 1.22), same),
        trial_of("fused_optimizer", "optimizer.implementation", "fused", baseline, 3.39, (1.01, 0.99, 1.03), same),
    ]
    profile = Profile(
        step_ms=3.42,
        phases={"forward": 1.02, "loss": 0.06, "backward": 1.93, "optimizer": 0.38, "zero_grad": 0.01},
        operators=(OperatorRow("aten::addmm", 4.0, 0.91, 0.0),),
        bottleneck=Bottleneck.COMPUTE,
        evidence="86 % of the step is in matrix products.",
    )
    stack = StackRecord(
        settings={"cpu.threads": 4},
        result=result_of(2.87, 128, reserved=0.61),
        comparison=Comparison(1.192, 1.171, 1.214, paired=True),
        numerics=same,
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
        events.FactsFound(Facts(hardware, facts.workload, profile, facts.versions)),
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
    """The request of :func:`sample_history`."""
    return Request(target=TargetSpec("mymodel:build", "/home/ada/vision"))


def cpu_request() -> Request:
    """The request of :func:`cpu_history`."""
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
    state.ranked = tuple(
        replace(item, record=record) if item.record.candidate.name == name else item for item in state.recommendations
    )
    return state


def written(history: Iterable[events.Event] = (), request: Request | None = None) -> Journal:
    """The journal of a session that is recorded on disk, with these events."""
    with closing(Journal.create(request or sample_request())) as journal:
        for event in history:
            journal.record(event)
    return journal


def journaled(history: Sequence[events.Event], request: Request | None = None) -> str:
    """The id of a session that is recorded on disk."""
    return written(history, request).session_id


def h200_machine() -> Hardware:
    gpu = h200(memory_total_bytes=150_754_820_096, memory_used_bytes=640 * 2**20, driver_version="580.65.06", **IDLE)
    return Hardware(host(cpu="Intel(R) Xeon(R) Platinum 8558"), (gpu,))


def resnet_facts(hardware: Hardware) -> Facts:
    workload = gpu_facts(
        model="ResNet",
        parameters=25_557_032,
        parameter_bytes=102_228_128,
        parameter_tensors=161,
        families={"conv2d": 53, "batch_norm": 53, "linear": 1},
        batch_size=64,
        threads=16,
        device_memory_bytes=150_754_820_096,
        batch_text="64 x 3 x 224 x 224 float32, 64 int64",
        data_kind="loader",
        optimizer=OptimizerFacts("Adam", "foreach", ("for-loop", "foreach", "fused"), True, 161, 204_456_256),
        loader=LoaderFacts(64, 8, True, True, 2, 1251, False, False),
        current={
            "data.batch_size": 64,
            "data.num_workers": 8,
            "data.pin_memory": True,
            "model.memory_format": "none",
            "optimizer.implementation": "foreach",
            "precision.autocast": "none",
            "step.zero_grad": "none",
        },
    ).workload
    versions = {"torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "9.15.1", "torchvision": "0.26.0", "python": "3.12.3"}
    return Facts(hardware, workload, None, versions)


def resnet_profile() -> Profile:
    return Profile(
        step_ms=26.31,
        phases={
            "data wait": 0.08,
            "host-to-device": 1.91,
            "forward": 8.32,
            "loss": 0.11,
            "backward": 15.94,
            "optimizer": 0.71,
            "zero_grad": 0.05,
        },
        operators=(
            OperatorRow("aten::convolution_backward", 53.0, 3.1, 11.62),
            OperatorRow("aten::cudnn_convolution", 53.0, 2.2, 5.41),
            OperatorRow("aten::cudnn_batch_norm_backward", 53.0, 1.4, 3.02),
        ),
        device_busy_share=0.97,
        kernels_per_step=731.0,
        flops_per_step=1_585_000_000_000,
        ceiling_flops_per_s=4.71e13,
        ceiling_dtype="float32",
        copy_bytes_per_s=4.02e12,
        bottleneck=Bottleneck.COMPUTE,
        evidence="the GPU is busy 97 % of the step, most of it in convolutions.",
        habits=(
            HabitRow("eval_no_grad", "grad", step_ms=8.9, memory_bytes=5 * GIB),
            HabitRow("eval_no_grad", "no_grad", step_ms=8.3, memory_bytes=GIB // 2),
        ),
        sync_places=(),
    )


def resnet_trials(baseline: BaselineRecord) -> list[TrialRecord]:
    same = NumericsResult(Numerics.EXACT, Numerics.EXACT, 0.0, "the first 8 losses are bit-equal")
    close = NumericsResult(Numerics.CLOSE, Numerics.CLOSE, 3.1e-3, "the first 8 losses differ by 0.31 % at most")
    full = TrialResult(
        Outcome.OUT_OF_MEMORY,
        "tried to allocate 2.00 GiB; 138.9 GiB of 139.8 GiB were in use <by this & another process>",
        "Try a smaller batch, or stop the other process.",
        wall_s=41.2,
    )
    late = TrialResult(Outcome.TIMED_OUT, "no step ended within 60 s")
    return [
        trial_of("control", "control.noop", True, baseline, 26.34, (0.999, 0.996, 1.002), same),
        trial_of("channels_last", "model.memory_format", "channels_last", baseline, 18.93, (1.39, 1.384, 1.396), close),
        trial_of(
            "autocast", "precision.autocast", "bfloat16", baseline, 23.49, (1.12, 1.113, 1.127), close, reserved=8.49
        ),
        trial_of("fused_optimizer", "optimizer.implementation", "fused", baseline, 25.83, (1.019, 1.014, 1.023), same),
        trial_of(
            "cudnn_benchmark", "backends.cudnn_benchmark", True, baseline, 26.28, (1.001, 0.997, 1.005), close, 11.9
        ),
        trial_of("zero_grad", "step.zero_grad", "zeros", baseline, 27.02, (0.974, 0.97, 0.978), same),
        trial_of("batch_size", "data.batch_size", 128, baseline, 48.6, (1.083, 1.077, 1.089), None, samples=128),
        failed_trial("compile", "compile.mode", "max-autotune", full),
        failed_trial("step_graph", "step.cuda_graph", True, late),
    ]


def resnet_stack(baseline: BaselineRecord, *, confirmed: bool) -> StackRecord:
    return StackRecord(
        settings={
            "model.memory_format": "channels_last",
            "optimizer.implementation": "fused",
            "precision.autocast": "bfloat16",
        },
        result=result_of(13.36, 64, reserved=5.47, warmup=2.2),
        comparison=Comparison(1.969, 1.958, 1.981, paired=confirmed),
        numerics=NumericsResult(
            Numerics.CLOSE, Numerics.CLOSE, 4.4e-3, "the first 8 losses differ by 0.44 % at most; seeds differ by 1.9 %"
        ),
        break_even_steps=_break_even(baseline, 13.36, 2.2),
        step_ms=13.36,
        samples_per_s=64 / 13.36e-3,
        confirmed=confirmed,
        dropped={"step.zero_grad": "slower on top of the others"},
    )


def resnet_combinations() -> list[events.Event]:
    """The combinations that were measured on the way to the stack."""
    half = {"precision.autocast": "bfloat16"}
    measured = (
        ({**half, "model.memory_format": "channels_last"}, 1.93, 5.51),
        ({**half, "optimizer.implementation": "fused"}, 1.14, 8.49),
        ({**half, "memory.activation_checkpointing": "blocks"}, 0.94, 3.38),
    )
    return [
        events.CombinationMeasured(
            Combination(settings, Comparison(speedup, 0.994 * speedup, 1.006 * speedup), round(gib * GIB))
        )
        for settings, speedup, gib in measured
    ]


def detailed_baseline(baseline: BaselineRecord) -> BaselineRecord:
    gpu = GpuReadings(61, 1755, 612.4, ("power cap", "software thermal slowdown"))
    notes = ("no loss was given: cross entropy is assumed",)
    return replace(baseline, result=replace(baseline.result, gpu=gpu, energy_j_per_sample=0.252, notes=notes))


def detailed_profile() -> Profile:
    operators = tuple(OperatorRow(f"aten::filler_{place}", 4.0, 0.1, 0.05) for place in range(12))
    convolution = OperatorRow("aten::convolution", 53.0, 0.4, 5.41)
    return replace(
        resnet_profile(),
        operators=(*operators, convolution),
        ceiling_flops_per_s=3.61e14,
        ceiling_dtype="tf32",
        host_to_device_bytes=38_535_168,
        moved_bytes_per_step=48 * 10**9,
        calls_per_step=1204.0,
        call_overhead_s=3.1e-6,
        ceilings=Ceilings({"float32": 5.1e13, "tf32": 3.61e14, "bfloat16": 7.21e14}, 4.02e12, 3.1e-6, "2026-03-14"),
        sync_places=(SyncPlace("train.py", 41, "total += loss.item()", 1.0, 19.4),),
        host_made_tensors=3,
    )


def detailed_trials() -> list[TrialRecord]:
    """One setting that is on already, a saving of memory, a disturbed trial, and what a budget did not allow."""
    baseline = baseline_of(26.31, 64, H200_NOISE, reserved=9.13)
    wrong = NumericsResult(Numerics.CHANGED, Numerics.CLOSE, 0.2, "the first 8 losses differ by 20 %")
    pinned = trial_of("pin_memory", "data.pin_memory", False, baseline, 27.02, (0.974, 0.97, 0.978), None)
    saving = trial_of(
        "checkpointing", "memory.activation_checkpointing", "blocks", baseline, 33.4, (0.788, 0.78, 0.79), None
    )
    odd = trial_of("debug_off", "precision.reduced", True, baseline, 26.0, (1.012, 0.99, 1.03), wrong)
    notes = ("no loss was given: cross entropy is assumed", "2 graph breaks: call to print")
    late = TrialResult(Outcome.SKIPPED, "it needs about 42 s, more than the budget has left; raise --budget to try it")
    return [
        replace(pinned, candidate=replace(pinned.candidate, already_on=True)),
        replace(saving, result=replace(saving.result, peak_allocated_bytes=3 * GIB, peak_reserved_bytes=4 * GIB)),
        replace(odd, result=replace(odd.result, disturbed="another process came to the GPU", notes=notes)),
        failed_trial("compile_scope", "compile.scope", "regional", late),
        failed_trial("batch_size", "data.batch_size", 256, late),
        failed_trial("batch_size", "data.batch_size", 512, late),
    ]


DEMO_SKIPPED = {
    "autocast": "this CPU has no fast bfloat16 units (AVX-512 BF16 or AMX)",
    "channels_last": "no convolutions",
    "step_graph": "needs a CUDA GPU; this session runs on the CPU",
}


def cpu_machine() -> Hardware:
    cores = {"physical_cores": 8, "logical_cores": 16, "usable_cores": 8}
    found = host(cpu="AMD EPYC 7B13", memory_total_bytes=32 * GIB, memory_available_bytes=25 * GIB, **cores)
    return Hardware(found, gpu_note="No NVIDIA driver is installed on this machine.")


def demo_facts(hardware: Hardware) -> Facts:
    workload = cpu_facts(
        device_name="AMD EPYC 7B13",
        device_memory_bytes=hardware.host.memory_total_bytes,
        model="Sequential",
        parameters=789_258,
        parameter_bytes=3_157_032,
        parameter_tensors=8,
        families={"linear": 4},
        batch_size=128,
        batch_text="128 x 784 float32, 128 int64",
        optimizer=OptimizerFacts("SGD", "foreach", ("for-loop", "foreach", "fused"), False, 8),
        threads=8,
        current={"cpu.threads": 8, "optimizer.implementation": "foreach", "step.zero_grad": "none"},
    ).workload
    return Facts(hardware, workload, None, {"torch": "2.11.0+cpu", "python": "3.12.3"})


def baseline_of(step_ms: float, samples: int, noise: float, *, reserved: float) -> BaselineRecord:
    return BaselineRecord(
        result_of(step_ms, samples, reserved=reserved), step_ms, 1e3 * samples / step_ms, half_width=noise
    )


def result_of(step_ms: float, samples: int, *, reserved: float, warmup: float = 1.1) -> TrialResult:
    drift = (0.998, 1.001, 1.0, 0.999, 1.002, 1.0)
    return TrialResult(
        Outcome.MEASURED,
        batch_size=samples,
        blocks=tuple(Block(20, 20 * samples, 20 * step_ms * share / 1e3) for share in drift),
        event_step_ms=(0.99 * step_ms, step_ms, 1.02 * step_ms),
        peak_allocated_bytes=round(0.91 * reserved * GIB),
        peak_reserved_bytes=round(reserved * GIB),
        device_used_bytes=round((reserved + 0.6) * GIB),
        startup_s=0.05,
        build_s=0.71,
        prepare_s=0.02,
        warmup_s=warmup,
        warmup_steps=12,
        wall_s=4.1 + warmup,
        losses=(6.91, 6.88, 6.79),
        log_path="/tmp/sample/trial.log",
    )


def trial_of(  # noqa: PLR0917 - read as a table row
    recipe: str,
    key: str,
    value: Value,
    baseline: BaselineRecord,
    step_ms: float,
    interval: tuple[float, float, float],
    numerics: NumericsResult | None,
    warmup: float = 1.1,
    *,
    samples: int | None = None,
    reserved: float | None = None,
) -> TrialRecord:
    """A candidate's record with a speed-up; it reserves ``reserved`` GiB, or as many as the baseline."""
    candidate = Candidate(recipe, key, value)
    count = samples or baseline.result.batch_size or 1
    reserved = reserved or (baseline.result.peak_reserved_bytes or 0) / GIB
    return TrialRecord(
        candidate,
        candidate.settings,
        result_of(step_ms, count, reserved=reserved, warmup=warmup),
        Comparison(*interval),
        numerics,
        _break_even(baseline, step_ms, warmup),
        step_ms,
        1e3 * count / step_ms,
    )


def failed_trial(recipe: str, key: str, value: Value, result: TrialResult) -> TrialRecord:
    """A candidate's record without a measurement."""
    candidate = Candidate(recipe, key, value)
    return TrialRecord(candidate, candidate.settings, result)


def _break_even(baseline: BaselineRecord, step_ms: float, warmup_s: float) -> int | None:
    return break_even_steps(warmup_s - (baseline.result.warmup_s or 0.0), baseline.step_ms / 1e3, step_ms / 1e3)


def told_of(trials: Sequence[TrialRecord]) -> list[events.Event]:
    told: list[events.Event] = []
    for place, trial in enumerate(trials):
        name = trial.candidate.name
        told += [
            events.TrialStarted(name, f"/tmp/sample/{name}.log"),
            events.TrialActivity(name, "measuring"),
            events.BlockTimed(name, 9.0),
            events.TrialMeasured(trial),
            events.ProgressMade((place + 1) / (len(trials) + 2), 12.0 * (len(trials) - place)),
        ]
    return told


def ranked_of(trials: Sequence[TrialRecord], stacked: set[str]) -> tuple[Recommendation, ...]:
    """The faster ones, the best first."""
    worth = [trial for trial in trials if trial.verdict.value == "faster"]
    worth.sort(key=lambda trial: trial.comparison.speedup if trial.comparison else 0.0, reverse=True)
    return recommended(worth, stacked)


def recommended(trials: Iterable[TrialRecord], stacked: set[str]) -> tuple[Recommendation, ...]:
    """The trials, ranked as they come; ``stacked`` are the keys of the combination."""
    return tuple(
        Recommendation(
            rank=rank,
            record=trial,
            title=_TITLES.get(trial.candidate.recipe, trial.candidate.recipe),
            why=f"It attacks what the step is bound by: {trial.candidate.key}.",
            needs_consent=trial.candidate.recipe == "batch_size",
            in_stack=trial.candidate.key in stacked,
        )
        for rank, trial in enumerate(trials, 1)
    )


_TITLES = {
    "autocast": "Automatic mixed precision",
    "batch_size": "Larger batch",
    "channels_last": "Channels-last memory format",
    "compile": "torch.compile",
    "fused_optimizer": "Fused optimizer",
    "num_workers": "DataLoader workers",
    "tf32": "TF32 matrix products",
    "threads": "Number of CPU threads",
}
