"""The baseline and what tells its noise: the first run, the control, the reference, repeats; and a step on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from advisor.errors import TargetError, UsageError
from advisor.experiment import events
from advisor.experiment.bench import ENERGY_S
from advisor.experiment.context import SessionContext
from advisor.experiment.hints import hints_for, workload_name
from advisor.experiment.judge import Judge, speed
from advisor.experiment.numerics import finite
from advisor.experiment.ranking import CONTROL
from advisor.experiment.reference import reference_spec
from advisor.experiment.request import Request
from advisor.experiment.tolerance import own_rounding
from advisor.hardware import counts_energy
from advisor.records import (
    BaselineRecord,
    Candidate,
    Facts,
    Finding,
    Hardware,
    Mode,
    Objective,
    Outcome,
    TrialResult,
    WorkloadFacts,
)

# A step that the CPU does not finish a few times in so long is not waited for.
_CPU_TRIAL_S = 20.0
_CPU_MEASURE_S = 0.5
# Building that takes less is not worth a process that holds the model.
_WORTH_BUILDING_ONCE_S = 0.2
_NO_ENERGY = (
    "no energy counter can be read here, so energy cannot be the objective.",
    "Choose --objective throughput; NVIDIA GPUs count their energy from Volta on, whole ones only.",
)


def check_energy(request: Request, hardware: Hardware) -> None:
    """Refuse at once to minimise what nothing here can measure. Raises UsageError."""
    if request.objective is not Objective.ENERGY:
        return
    on_cpu = request.target.device == "cpu"
    if on_cpu or not any(counts_energy(gpu.uuid) for gpu in hardware.gpus):
        raise UsageError(*_NO_ENERGY)


class BaselineMeasurements:
    """Measures the user's own settings, and nothing else.

    ``after_control`` is called once the control has shown how much is noise.
    """

    def __init__(self, context: SessionContext, *, after_control: Callable[[], None]) -> None:
        self._context = context
        self._after_control = after_control

    def measure(self, hardware: Hardware, findings: tuple[Finding, ...]) -> None:
        """The first run, from which the facts and the judge come; of a session that is continued, one more run.

        Raises TargetError when it fails, and UsageError when it has no energy and that is the objective.
        """
        past = self._context.past
        if past is not None and past.baseline is not None and past.facts is not None:
            self._take_over(past.baseline, replace(past.facts, findings=findings))
            self.repeat()
            return
        result = self._first_run(hardware, findings)
        if result.build_s is not None and result.build_s > _WORTH_BUILDING_ONCE_S:
            self._context.bench.build_once(result.build_s)
        if not finite(result):
            self._context.warn(
                "the baseline's own losses or outputs are not finite, so no numerics can be compared: check the data, "
                "the loss and the learning rate"
            )

    def measure_control(self) -> None:
        """The trial that changes nothing, once, and what follows from the noise that it shows.

        Where nothing was measured that it could tell from noise, it does not overrun the budget.
        """
        context, judge = self._context, self._context.judge
        candidate = Candidate(CONTROL, context.catalog[CONTROL].key, True)
        needed = any(record.result.measured for record in context.records.values())
        if candidate.name in context.records or not (needed or context.reserves.affordable(reserve_s=0.0)):
            return
        spec = context.bench.spec(candidate.name, candidate.settings)
        result = context.bench.run(replace(spec, stream_seed=context.request.seed + 1))
        if not result.measured:
            context.warn(
                f"your own settings failed when they were measured again: {result.reason}; let the target be built and "
                "run any number of times, or no other setting can be judged"
            )
        judge.add_control(result)
        context.keep(judge.record(candidate, candidate.settings, result))
        context.judge_again()
        self._after_control()

    def probe_reference(self) -> None:
        """The baseline's first steps in a higher precision, where they fit. A failure only leaves a wider tolerance."""
        context, judge = self._context, self._context.judge
        spec = reference_spec(context.bench, context.facts, judge.baseline, judge.spread)
        if spec is not None:
            result = context.bench.run(spec)
            judge.add_reference(result)
            context.emit(events.TrialActivity(spec.trial_id, result.reason or "done"))
            context.judge_again()

    def repeat(self) -> None:
        """Measure the baseline once more, and again when it stands out: a slow minute of the host is no noise floor."""
        context, judge = self._context, self._context.judge
        if not context.reserves.affordable(reserve_s=0.0):
            return
        spec = context.bench.spec("baseline", {})
        if judge.spread.random:
            # Another draw of what the steps draw: the more are seen, the better their spread is known.
            spec = replace(spec, stream_seed=context.request.seed + 2 + len(judge.repeats))
        result = context.bench.run(spec)
        if judge.stands_out(result) and context.reserves.affordable(reserve_s=0.0):
            again = context.bench.run(spec)
            if again.measured and not judge.stands_out(again):
                judge.add_outlier(result)
                context.say(
                    f"one run of the baseline took {speed(result)[0] / speed(again)[0]:.2f} times as long as the next: "
                    "it does not count as noise, and close calls are settled up to that difference"
                )
            else:
                judge.add_repeat(result)
            result = again
        judge.add_repeat(result)
        context.judge_again()

    def measure_on_the_cpu(self) -> None:
        """The baseline's step on the CPU, when a GPU session has time left: what the GPU is worth."""
        context, judge = self._context, self._context.judge
        if not context.facts.on_cuda or not context.bench.budget.allows(_CPU_TRIAL_S):
            return
        spec = context.bench.spec("the same step on the CPU", {})
        target = replace(spec.target, device="cpu")
        result = context.bench.run(replace(spec, target=target, measure_s=_CPU_MEASURE_S, timeout_s=_CPU_TRIAL_S))
        if result.measured:
            judge.cpu_step_ms = speed(result)[0]
            context.emit(events.BaselineMeasured(judge.baseline_record()))

    def _take_over(self, past: BaselineRecord, facts: Facts) -> None:
        """Hold results against the baseline of the session that this one continues."""
        context = self._context
        context.known_facts = facts
        context.known_judge = self._judge(facts.workload, past.result, earlier_floor=past.noise_floor)
        context.emit(events.FactsFound(facts))

    def _first_run(self, hardware: Hardware, findings: tuple[Finding, ...]) -> TrialResult:
        """Measure, inspect and profile the target, and learn from it what the session needs to know."""
        context, bench = self._context, self._context.bench
        spec = replace(bench.spec("baseline", {}, at_least_s=ENERGY_S), inspect=True, profile=True)
        result = bench.run(spec)
        if not result.measured or bench.inspected is None:
            raise TargetError(_problem(result), result.hint or "Mend the target and try again.", result.details)
        if context.request.objective is Objective.ENERGY and result.energy_j_per_sample is None:
            raise UsageError(*_NO_ENERGY)
        inspected, profiled = bench.inspected, bench.profiled
        workload = inspected.workload
        facts = context.known_facts = Facts(
            hardware,
            workload,
            profiled.profile if profiled else None,
            inspected.versions,
            findings=findings,
            peak_allocated_bytes=result.peak_allocated_bytes,
            peak_reserved_bytes=result.peak_reserved_bytes,
        )
        judge = context.known_judge = self._judge(workload, result)
        context.hints = hints_for(workload_name(context.request.target, facts))
        bench.budget.parameter_tensors = workload.parameter_tensors
        bench.budget.compiles_backward = workload.mode is Mode.TRAIN
        bench.budget.hinted_compile_s = context.hints.compile_s
        context.emit(events.FactsFound(facts))
        context.emit(events.BaselineMeasured(judge.baseline_record()))
        return result

    def _judge(self, workload: WorkloadFacts, baseline: TrialResult, *, earlier_floor: float = 0.0) -> Judge:
        return Judge(
            self._context.catalog,
            workload.mode,
            baseline,
            earlier_floor=earlier_floor,
            own_rounding=own_rounding(self._context.catalog, workload),
            goal=self._context.request.goal,
        )


def _problem(result: TrialResult) -> str:
    if result.outcome is Outcome.FAILED:
        return result.reason
    return f"the baseline could not be measured: {result.reason or result.outcome.value}"
