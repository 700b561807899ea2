"""Measured figures in the words that the app, the headless summary and the reports share. Pure functions.

The app adds colours and meters, the reports put the same words into tables and sentences.
"""

from collections.abc import Callable, Sequence
from statistics import median

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
from advisor.machine.hardware import POWER_CAP, SLOWDOWNS
from advisor.records import BaselineRecord, Facts, GpuReadings, Hardware, Latency, StackRecord, Verification
from advisor.records.trials import TrialRecord, TrialResult

# --- candidates and the stack -----------------------------------------------------------------------------------

# The stages of a session, as it names them.
STAGES = {
    "baseline": "measuring the baseline",
    "stack": "trying the usual combination",
    "instruments": "measuring noise and the profile",
    "search": "improving the combination",
    "confirmation": "confirming the combination",
    "alone": "measuring settings alone",
    "several GPUs": "measuring several GPUs",
}

IN_TURN = "in turn with the baseline"
# A larger difference between the speed-ups of the plain loop and of the session is shown. Unitless.
_AGREES = 0.1


def before_and_after(form: Callable[[float | None], str], before: float | None, after: float | None) -> str:
    """Two figures with their unit, written once if it is the same; the second alone where the first is not known."""
    first, second = form(before), form(after)
    number, _, unit = first.partition(" ")
    shown = number if unit and second.endswith(f" {unit}") else first
    return second if before is None else f"{shown} → {second}"


def effect_words(record: TrialRecord) -> str:
    """A candidate's effect on the speed: ``1.62x (1.60–1.64)``, ``1.20x (1.15–1.25) on the stack``."""  # noqa: RUF002
    if record.alone:
        return format_ratio(record.comparison)
    return f"{format_ratio(record.contribution)} on the stack" if record.contribution else "not measured alone"


def as_sentence(text: str) -> str:
    """A remark of the session, which begins in lower case and has no end, as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def call_words(calls: Latency) -> str:
    """The percentiles of single calls: ``p50 9.10 ms · p95 11.0 ms · p99 13.2 ms``."""
    times = ((50, calls.p50_ms), (95, calls.p95_ms), (99, calls.p99_ms))
    return " · ".join(f"p{share} {format_ms(time_ms)}" for share, time_ms in times)


def interval_words(baseline: BaselineRecord) -> str:
    """The interval of the baseline's speed, with the number of runs behind it: ``±0.9 % (3 runs)``."""
    return f"{format_within(baseline.half_width)} ({counted(baseline.runs, 'run')})"


def how_confirmed(stack: StackRecord) -> str:
    """The certainty of the stack's figure: ``confirmed`` in turn with the baseline, or ``measured once``.

    On a busy machine a figure is only confirmed if its whole interval is above 1.1x.
    """
    if stack.confirmed:
        return "confirmed"
    in_turn = stack.comparison is not None and stack.comparison.paired
    return f"{IN_TURN}, not confirmed beside other programs" if in_turn else "measured once"


def other_batch(stack: StackRecord, baseline: BaselineRecord | None) -> str:
    """The words on the batch size, if the stack's is not the baseline's: ``, at a batch of 64, not 32``; else empty."""
    size, own = stack.result.batch_size, baseline.result.batch_size if baseline else None
    return f", at a batch of {size}, not {own}" if size and own and size != own else ""


def tokens_per_s(facts: Facts | None, samples_per_s: float | None) -> float | None:
    """Tokens per second, for a step that generates text; None for others."""
    tokens = facts.workload.generated_tokens if facts else None
    return tokens * samples_per_s if tokens and samples_per_s else None


_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values, from 0 to 100, as a line of blocks."""
    levels = (min(len(_LEVELS) - 1, int(value / 100 * len(_LEVELS))) for value in list(values)[-width:])
    return "".join(_LEVELS[level] for level in levels).rjust(width)


def block_times(result: TrialResult) -> list[float]:
    """Milliseconds a step of each block, in the order in which they were timed."""
    return [block.step_ms for block in result.blocks]


def block_words(times_ms: Sequence[float], most: int) -> tuple[str, str]:
    """The fastest and the slowest block, ``26.1 ms to 27.0 ms``; and the last ones as a line that is level if steady.

    The line has the median at half height, and 10 % more at the top.
    """
    usual = median(times_ms)
    drawn = [100 * (0.5 + (time - usual) / (0.2 * usual)) for time in times_ms[-most:]] if usual else []
    series = sparkline([min(99.0, max(0.0, value)) for value in drawn], len(drawn))
    return " to ".join(dict.fromkeys(map(format_ms, (min(times_ms), max(times_ms))))), series


# --- the export ---------------------------------------------------------------------------------------------------


def verified_words(verification: Verification) -> str:
    """The result of verifying an exported file: ``verified: 6.80x in a plain loop (12.1 ms before, 1.78 ms with it)``.

    The session's figure follows where the two differ by more than a tenth.
    """
    speedup, measured = verification.speedup, verification.session_speedup
    if speedup is None:
        return f"not verified: {verification.problem}"
    steps = f"{format_ms(verification.plain_step_ms)} before, {format_ms(verification.tuned_step_ms)} with it"
    words = f"verified: {format_times(speedup)} in a plain loop ({steps})"
    if difference := verification.difference:
        words += f", {verification.compared} within {format_percent(difference, digits=2)}"
    differs = measured is not None and abs(speedup / measured - 1) > _AGREES
    return f"{words}; the session measured {format_times(measured)}" if differs and measured else words


# --- the GPU, the CPU and energy ------------------------------------------------------------------------------


def gpu_sentence(gpu: GpuReadings) -> str:
    """NVML's readings during a timing: gauges and slowdowns."""
    gauges = [f"{gpu.temperature_c} °C at most"] if gpu.temperature_c is not None else []
    if (clock := gpu.sm_clock_mhz) is not None:
        gauges.append(f"SM clock {clock} MHz")
    if gpu.power_w is not None:
        gauges.append(f"{gpu.power_w:.0f} W on average")
    # A power cap is normal for a heavy step.
    capped = ["at its power cap"] if POWER_CAP in gpu.throttle_reasons else []
    parts = (", ".join(gauges), *capped, *gpu_troubles(gpu))
    return "; ".join(dict.fromkeys(filter(None, parts)))


def gpu_troubles(gpu: GpuReadings) -> list[str]:
    """The readings that cast doubt on the timing."""
    slowed = [reason for reason in gpu.throttle_reasons if reason in SLOWDOWNS]
    others = [reason for reason in gpu.throttle_reasons if reason != POWER_CAP and reason not in SLOWDOWNS]
    return [
        *([f"slowed down ({', '.join(slowed)})"] if slowed else []),
        *([f"clocks limited ({', '.join(others)})"] if others else []),
    ]


def energy_words(energy_j: float | None, before_j: float | None = None) -> str:
    """Energy a sample, after the baseline's where that is known; empty where it was not measured."""
    return f"{before_and_after(format_energy, before_j, energy_j)} a sample" if energy_j is not None else ""


def gpu_names(hardware: Hardware) -> list[str]:
    """The machine's GPUs by name, with how many there are of each: ``8 x NVIDIA H200``."""
    names = [gpu.name for gpu in hardware.gpus]
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


def measured_on(state: SessionState) -> str:
    """The device that a session measured on; all GPUs of the machine where it used several, or the processor."""
    workload = state.facts.workload if state.facts else None
    if state.hardware is None:
        return ""
    if state.scaling is not None or workload is None or workload.device_type == "cpu":
        host = state.hardware.host
        return ", ".join(gpu_names(state.hardware)) or f"{host.cpu}, {host.usable_cores} cores"
    return f"{workload.ranks} x {workload.device_name}"
