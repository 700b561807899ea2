"""Words for measured figures, shared by the app, the summary and the reports; and conclusions from the figures."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_energy,
    format_ms,
    format_percent,
    format_ratio,
    format_times,
    format_within,
)
from advisor.figures.roof import RoofShare, dtype_under, roof_share
from advisor.figures.sweep import SweepPoint, sweep_points
from advisor.machine.hardware import POWER_CAP
from advisor.records import (
    BaselineRecord,
    Comparison,
    Facts,
    GpuReadings,
    Hardware,
    Latency,
    OperatorRow,
    Outcome,
    StackRecord,
    TrialRecord,
    Value,
    Verdict,
    Verification,
)

# --- candidates and the stack -----------------------------------------------------------------------------------

STAGES = {  # the stages of a session, in words
    "baseline": "measuring the baseline",
    "stack": "trying the usual combination",
    "instruments": "measuring noise and the profile",
    "search": "improving the combination",
    "confirmation": "confirming the combination",
    "alone": "measuring settings alone",
    "several GPUs": "measuring several GPUs",
}

IN_TURN = "in turn with the baseline"


def before_and_after(form: Callable[[float | None], str], before: float | None, after: float | None) -> str:
    """Two figures with their units; a common unit is written once. The second figure alone if the first is None."""
    first, second = form(before), form(after)
    number, _, unit = first.partition(" ")
    shown = number if unit and second.endswith(f" {unit}") else first
    return second if before is None else f"{shown} → {second}"


def effect_words(record: TrialRecord) -> str:
    """A candidate's effect on the speed: ``1.62x (1.60–1.64)``, ``1.20x (1.15–1.25) in the combination``."""  # noqa: RUF002
    if record.alone:
        return format_ratio(record.comparison)
    return f"{format_ratio(record.contribution)} in the combination" if record.contribution else "not measured alone"


def as_sentence(text: str) -> str:
    """Make a sentence of a remark, which begins with a small letter and has no full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def call_words(calls: Latency) -> str:
    """The percentiles of single calls: ``p50 9.10 ms · p95 11.0 ms · p99 13.2 ms``."""
    times = ((50, calls.p50_ms), (95, calls.p95_ms), (99, calls.p99_ms))
    return " · ".join(f"p{share} {format_ms(time_ms)}" for share, time_ms in times)


def interval_words(baseline: BaselineRecord) -> str:
    """The interval of the baseline's speed, with the number of runs behind it: ``±0.9 % (3 runs)``."""
    return f"{format_within(baseline.half_width)} ({counted(baseline.runs, 'run')})"


def how_confirmed(stack: StackRecord, state: SessionState) -> str:
    """The certainty of the stack's figure: ``confirmed`` if measured in turns and, if it was timed, by the file."""
    if stack.confirmed:
        agrees = state.verification is None or file_finding(state, state.verification)[0]
        return "confirmed" if agrees else "not confirmed by the exported file"
    in_turn = stack.comparison is not None and stack.comparison.paired
    return f"{IN_TURN}, not confirmed beside other programs" if in_turn else "measured once"


def other_batch(stack: StackRecord, baseline: BaselineRecord | None) -> str:
    """The stack's batch size, if it differs from the baseline's: ``, at a batch of 64, not 32``; else empty."""
    size, own = stack.result.batch_size, baseline.result.batch_size if baseline else None
    return f", at a batch of {size}, not {own}" if size and own and size != own else ""


def tokens_per_s(facts: Facts | None, samples_per_s: float | None) -> float | None:
    """Tokens per second of a step that generates text; None for other steps."""
    tokens = facts.workload.generated_tokens if facts else None
    return tokens * samples_per_s if tokens and samples_per_s else None


_LEVELS = "▁▂▃▄▅▆▇█"


def block_words(times_ms: Sequence[float], most: int) -> tuple[str, str]:
    """The fastest and the slowest block, ``26.1 ms to 27.0 ms``; and a sparkline of the last ``most`` blocks.

    The median is at half height, 10 % more at the top: steady times draw a level line.
    """
    usual, top = median(times_ms), len(_LEVELS) - 1
    heights = [0.5 + (time - usual) / (0.2 * usual) for time in times_ms[-most:]] if usual else []
    series = "".join(_LEVELS[min(top, max(0, int(height * len(_LEVELS))))] for height in heights)
    return " to ".join(dict.fromkeys(map(format_ms, (min(times_ms), max(times_ms))))), series


# --- the exported file, and the whole loop of a script -------------------------------------------------------------

MOST_OF_A_ROUND = 0.95  # a step that takes a larger share of a round counts as the whole round
_AGREES = 1.1  # an exported file agrees with the session if its speed-up is within this factor of the interval
_SAME = 1.03  # if the expected speed-up is smaller than this, the file may also be slower


def step_share(state: SessionState) -> float:
    """The step's share of a round of a script's loop; 1 if it is over 95 %, or if a whole round is the step."""
    facts, times = state.facts, state.baseline.result.whole_rounds if state.baseline else None
    share = 1.0 if times is None or (facts and facts.workload.own_step) else times.step_ms / times.round_ms
    return share if share <= MOST_OF_A_ROUND else 1.0


def of_the_loop(speedup: float, share: float) -> float:
    """The speed-up of a loop if this share of its time becomes faster by ``speedup``."""
    return 1 / (1 - share * (1 - 1 / speedup))


def file_finding(state: SessionState, found: Verification) -> tuple[bool, str]:
    """Whether an exported file reaches the measured speed, and the finding in words: ``confirmed: 1.90x (...``."""
    if found.speedup is None:
        return False, f"not confirmed: {found.problem}"
    effect = (state.stack and state.stack.comparison) or Comparison(found.speedup, found.speedup, found.speedup)
    share = step_share(state) if found.whole_rounds else 1.0
    middle, low, high = (of_the_loop(one, share) for one in (effect.speedup, effect.ci_low, effect.ci_high))
    agrees = low / _AGREES <= found.speedup <= high * _AGREES and (found.speedup >= 1 or middle < _SAME)
    differs = "slower" if found.speedup < 1 else "less fast" if found.speedup < low else "faster than measured"
    steps = before_and_after(format_ms, found.plain_step_ms, found.tuned_step_ms)
    losses = f", {found.compared} within {format_percent(found.difference, digits=2)}" if found.difference else ""
    by, measured = f"{'confirmed' if agrees else differs}: {found.speedup:.2f}x", format_times(effect.speedup)
    if share == 1.0:
        return agrees, f"{by} in a plain loop ({steps} a step){losses}; the session measured {measured}"
    gives = f"your step is {format_percent(share)} of it, so {measured} for the step gives {middle:.2f}x"
    return agrees, f"{by} for the whole loop ({steps} a round){losses}; {gives}"


# --- the GPU, the CPU and energy ------------------------------------------------------------------------------


def gpu_words(gpu: GpuReadings) -> str:
    """NVML's readings during a timing: temperature, clock, power and the reasons for limited clocks."""
    parts = [f"{gpu.temperature_c} °C at most"] if gpu.temperature_c is not None else []
    parts += [f"SM clock {gpu.sm_clock_mhz} MHz"] if gpu.sm_clock_mhz is not None else []
    parts += [f"{gpu.power_w:.0f} W on average"] if gpu.power_w is not None else []
    parts += ["at its power cap"] if POWER_CAP in gpu.throttle_reasons else []  # normal for a heavy step
    limits = ", ".join(reason for reason in gpu.throttle_reasons if reason != POWER_CAP)
    return ", ".join([*parts, f"clocks limited ({limits})"] if limits else parts)


def energy_words(energy_j: float | None, before_j: float | None = None) -> str:
    """The energy a sample, after the baseline's if known: ``before → after``; empty if it was not measured."""
    return f"{before_and_after(format_energy, before_j, energy_j)} a sample" if energy_j is not None else ""


def gpu_names(hardware: Hardware) -> list[str]:
    """The machine's GPUs by name, each with the number of them: ``8 x NVIDIA H200``."""
    names = [gpu.name for gpu in hardware.gpus]
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


def measured_on(state: SessionState) -> str:
    """The device that a session measured on: its GPU, all GPUs of the machine if it used several, or the CPU."""
    workload = state.facts.workload if state.facts else None
    if state.hardware is None:
        return ""
    if state.scaling is not None or workload is None or workload.device_type == "cpu":
        host = state.hardware.host
        return ", ".join(gpu_names(state.hardware)) or f"{host.cpu}, {host.usable_cores} cores"
    return f"{workload.ranks} x {workload.device_name}"


# --- conclusions from the state -----------------------------------------------------------------------------------


def stack_is_unclear(state: SessionState) -> bool:
    """Whether speed is the objective and the stack's interval is too wide to tell whether it is faster."""
    found = state.stack.comparison if state.stack and state.stack.settings else None
    return bool(state.goal.by_time and found and found.verdict is Verdict.UNCLEAR)


def stack_helps(state: SessionState) -> bool:
    """Whether the stack was measured to be better than the baseline, by the session's goal."""
    stack, by = state.stack, state.yardstick
    return bool(stack and stack.settings and by and by.may_recommend(stack.result, stack.comparison))


def settings_to_export(state: SessionState) -> dict[str, Value]:
    """The settings that a session exports: the settings of the stack.

    If several GPUs were faster, these are the settings measured on them, while the stack still contains them.
    """
    stack, scaling = state.stack, state.scaling
    if scaling and scaling.settings and scaling.carried.items() <= state.stack_settings.items():
        return scaling.all_settings
    return state.stack_settings if stack and (stack.result.measured or stack.pending) else {}


def roof_shares(state: SessionState) -> tuple[RoofShare | None, RoofShare | None]:
    """The shares of the peak rates that baseline and stack reach, each for its data type; None if unknown.

    The baseline's throughput is the one timed in turn with the stack, if there is one, as for the speed-up.
    """
    facts, baseline, stack, profile = state.facts, state.baseline, state.stack, state.profile
    if facts is None or profile is None or baseline is None:
        return None, None
    rate, tuned_rate = baseline.samples_per_s, None
    if stack and stack.settings and stack.samples_per_s:
        rate, tuned_rate = stack.baseline_samples_per_s or rate, stack.samples_per_s
    before, after = (
        roof_share(profile, samples_per_s, facts.workload.batch_size, dtype_under(profile, settings))
        for samples_per_s, settings in ((rate, {}), (tuned_rate, state.stack_settings))
    )
    return before, after


def tuned_phases(state: SessionState) -> dict[str, float]:
    """The milliseconds of each phase with the stack; empty if they were not timed."""
    return state.stack.result.phases if state.stack and state.stack.settings else {}


def by_own_time(operators: Iterable[OperatorRow]) -> tuple[bool, list[OperatorRow]]:
    """Sort operators by their own time on the device, or on the host if none has time on the device.

    The first value says whether they are sorted by the device's time.
    """
    rows = list(operators)
    on_device = any(row.device_ms for row in rows)
    return on_device, sorted(rows, key=lambda row: row.device_ms if on_device else row.host_ms, reverse=True)


def sweep_of(state: SessionState) -> tuple[SweepPoint, ...]:
    """The sweep over batch sizes, including the baseline's; empty if fewer than two sizes were measured."""
    if state.baseline is None:
        return ()
    memory_bytes = state.facts.workload.device_memory_bytes if state.facts else 0
    limit_ms, trials = state.goal.latency_limit_ms, state.trials.values()
    points = sweep_points(state.baseline, trials, memory_bytes=memory_bytes or None, latency_limit_ms=limit_ms)
    return points if sum(point.samples_per_s is not None for point in points) > 1 else ()


def effect_of(record: TrialRecord) -> Comparison | None:
    """A candidate's own effect on the speed; None if it was only measured together with others."""
    return record.comparison if record.alone else record.contribution


def candidates_tried(state: SessionState) -> list[TrialRecord]:
    """The candidates that were tried, without the control."""
    ran = (record for record in state.trials.values() if record.result.outcome is not Outcome.SKIPPED)
    return [record for record in ran if record.candidate.recipe != CONTROL]


def count_untried(state: SessionState) -> int:
    """The number of candidates that were planned but not tried."""
    return sum(record.result.outcome is Outcome.SKIPPED for record in state.trials.values())
