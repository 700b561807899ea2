"""The overview's plan, waterfall and panels as text. Pure functions of records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from textual.content import Content

from advisor.experiment.objective import Goal
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_bytes,
    format_count,
    format_ms,
    format_rate,
    format_seconds,
    format_setting,
    link_rows,
)
from advisor.records import (
    BaselineRecord,
    ClockCheck,
    Facts,
    GpuInfo,
    Hardware,
    HostInfo,
    Mode,
    StackRecord,
    Value,
    WorkloadFacts,
)
from advisor.report.charts import Axis, Bar, Bars, Tone
from advisor.report.figures import interval_words
from advisor.tui.text import DIM, SMALL_EFFECT, TONES, meter, said_text, shortened
from advisor.tui.views.readings import cpu_text, energy_text, found_text, live_text, readings_text, remarks
from advisor.tui.widgets.fact_list import Fact

_MOST_MESSAGES = 6
_SEVERITIES = {"warning": ("Warning", "$warning"), "error": ("Error", "$error")}


def hardware_facts(hardware: Hardware | None, device_uuid: str | None, *, short: bool = False) -> list[Fact]:
    """The GPU that is measured on (or the first), and the host; a line of each where it has to be ``short``."""
    if hardware is None:
        return []
    gpu = hardware.gpu_by_uuid(device_uuid) or (hardware.gpus[0] if hardware.gpus else None)
    facts: list[Fact] = []
    if gpu:
        facts += _gpu_facts(gpu)[:1] if short else _gpu_facts(gpu)
    else:
        facts.append(("GPU", Content.styled(hardware.gpu_note or "none found", DIM)))
    if others := [other.name for other in hardware.gpus if other is not gpu]:
        facts.append(("More GPUs", f"{len(others)}: {', '.join(sorted(set(others)))}"))
    facts += [("Links", f"{link}, {pairs}") for pairs, link in link_rows(hardware.links)]
    return facts + (_host_facts(hardware.host)[:1] if short else _host_facts(hardware.host))


def _gpu_facts(gpu: GpuInfo) -> list[Fact]:
    capability = f"  sm_{gpu.compute_capability[0]}{gpu.compute_capability[1]}" if gpu.compute_capability else ""
    facts: list[Fact] = [
        ("GPU", Content.assemble((gpu.name, "bold"), (capability, DIM))),
        ("Memory", f"{format_bytes(gpu.memory_total_bytes)}, {format_bytes(gpu.memory_used_bytes)} in use"),
        ("Driver", f"{gpu.driver_version}, CUDA {gpu.cuda_driver_version or 'unknown'}"),
        (
            "Clocks",
            f"SM {_of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)}, "
            f"memory {_of(gpu.memory_clock_mhz, gpu.memory_clock_max_mhz)} MHz",
        ),
        ("Power", _power(gpu)),
        (
            "PCIe",
            f"gen {_of(gpu.pcie_generation, gpu.pcie_generation_max)}, x{_of(gpu.pcie_width, gpu.pcie_width_max)}",
        ),
    ]
    if gpu.throttle_reasons:
        facts.append(("Throttled", Content.styled(", ".join(gpu.throttle_reasons), "$warning")))
    if gpu.mig_enabled:
        facts.append(("MIG", "on"))
    facts.append(("Processes", _processes(gpu)))
    return facts


def _of(now: int | None, most: int | None) -> str:
    shown = "?" if now is None else str(now)
    return shown if most is None or most == now else f"{shown} of {most}"


def _power(gpu: GpuInfo) -> str:
    parts = [] if gpu.power_w is None else [f"{gpu.power_w:.0f} W"]
    parts += [] if gpu.power_limit_w is None else [f"limit {gpu.power_limit_w:.0f} W"]
    parts += [] if gpu.temperature_c is None else [f"{gpu.temperature_c} °C"]
    return ", ".join(parts) or "not reported"


def _processes(gpu: GpuInfo) -> Content:
    if not gpu.processes:
        return Content.styled("no other on this GPU", DIM)
    named = [f"{process.name} ({process.pid}, {format_bytes(process.used_memory_bytes)})" for process in gpu.processes]
    return Content.styled("; ".join(named), "$warning")


def _host_facts(host: HostInfo) -> list[Fact]:
    cores = f"{host.usable_cores} of {host.logical_cores} cores usable"
    return [
        ("CPU", Content.assemble(host.cpu, (f"  {cores}", DIM))),
        ("Host", f"{format_bytes(host.memory_total_bytes)} memory, {host.system}, Python {host.python}"),
    ]


def what_is_measured(facts: Facts | None) -> Content:
    """The workload in a few words, for the headline's border."""
    if facts is None:
        return Content("")
    workload = facts.workload
    batch = f", batch {workload.batch_size}" if workload.batch_size else ""
    return Content(f"{workload.model}, {_loop(workload)}{batch} on {workload.device_name}")


def workload_facts(facts: Facts | None, defaults: Mapping[str, Value]) -> list[Fact]:
    """Facts on the workload. Of the user's present settings, only those that are not at their default."""
    if facts is None:
        return []
    workload = facts.workload
    optimizer = workload.optimizer
    rows: list[Fact] = [
        ("Model", Content.assemble((workload.model, "bold"))),
        ("Size", _size(workload)),
        ("Mode", Content.assemble(_loop(workload), (f" on {workload.device_name} ({workload.device})", DIM))),
        ("Batch", f"{'?' if workload.batch_size is None else workload.batch_size}: {workload.batch_text}"),
        ("Data", _data(workload)),
        ("Loss", workload.loss),
    ]
    if optimizer:
        rows.append(("Optimizer", f"{optimizer.name} ({optimizer.implementation}), {optimizer.tensors} tensors"))
    return rows + _current(workload.current, defaults)


def _current(current: Mapping[str, Value], defaults: Mapping[str, Value]) -> list[Fact]:
    own = {key: value for key, value in current.items() if key not in defaults or defaults[key] != value}
    listed = [format_setting(key, value) for key, value in sorted(own.items())]
    others = len(current) - len(own)
    listed += [f"{'the other' if own else 'all'} {others} at PyTorch's default"] if others else []
    return [("Settings", Content.styled(", ".join(listed), DIM))] if listed else []


def _size(workload: WorkloadFacts) -> str:
    dtypes = "/".join(workload.parameter_dtypes)
    count = "1 parameter" if workload.parameters == 1 else f"{format_count(workload.parameters)} parameters"
    return f"{count}, {format_bytes(workload.parameter_bytes)} {dtypes}"


def _loop(workload: WorkloadFacts) -> str:
    return "training" if workload.mode is Mode.TRAIN else "inference"


def _data(workload: WorkloadFacts) -> str:
    loader = workload.loader
    if loader is None:
        return workload.data_kind
    pinned = "pinned" if loader.pin_memory else "not pinned"
    return f"{workload.data_kind}, {loader.num_workers} workers, {pinned}"


def baseline_facts(
    baseline: BaselineRecord | None, facts: Facts | None, stack: StackRecord | None = None
) -> list[Fact]:
    """The baseline and the step's bottleneck; also its step beside the ``stack`` where that was another."""
    if baseline is None:
        return []
    result = baseline.result
    rows: list[Fact] = [
        ("Step", Content.assemble((format_ms(baseline.step_ms), "bold"), "  ", format_rate(baseline.samples_per_s))),
        *_in_turn(baseline, stack),
        *_spread(baseline),
        ("Interval", interval_words(baseline)),
        *bound_facts(facts),
        ("Memory", f"{format_bytes(result.peak_reserved_bytes)} peak"),
    ]
    beside = (("Energy", energy_text(result, None)), ("GPU", readings_text(result.gpu)), ("On CPU", cpu_text(baseline)))
    rows += [(label, text) for label, text in beside if text is not None]
    return [
        *rows,
        ("Start-up", f"{format_seconds(result.startup_s)}, warm-up {format_seconds(result.warmup_s)}"),
        *remarks(result),
    ]


def bound_facts(facts: Facts | None) -> list[Fact]:
    """The bottleneck with its evidence."""
    profile = facts.profile if facts else None
    if profile is None or not profile.kind_of_step:
        return []
    return [("Limit", Content.assemble((profile.kind_of_step, "bold $accent"), "  ", profile.evidence))]


def _in_turn(baseline: BaselineRecord, stack: StackRecord | None) -> list[Fact]:
    """The step of the baseline that alternated with the stack, where it was another: the result is against that."""
    beside = format_ms(stack.baseline_step_ms if stack and stack.confirmed else None)
    same = beside in (MISSING, format_ms(baseline.step_ms))
    return [] if same else [("In turn", f"{beside} beside the stack; the result is against this")]


def _spread(baseline: BaselineRecord) -> list[Fact]:
    """The spread of single steps. They were timed in the first run: where that was another step, it is told too."""
    steps = baseline.result.event_step_ms
    if steps is None:
        return []
    low, middle, high = steps
    told = " to ".join(dict.fromkeys((format_ms(low), format_ms(high))))
    if low <= baseline.step_ms <= high or format_ms(middle) == format_ms(baseline.step_ms):
        return [("Spread", Content.styled(f"{told}, single steps of the first run", DIM))]
    return [("First run", Content.styled(f"{format_ms(middle)} when its steps were timed singly ({told})", DIM))]


def source_facts(state: SessionState) -> list[Fact]:
    """The findings in the user's source; empty when no file was read."""
    if not state.source_files and not state.source_problems:
        return []
    rows: list[Fact] = [("•", found_text(finding)) for finding in state.findings]
    if state.source_files and not state.findings:
        rows.append(("•", f"{', '.join(state.source_files)}: no habit that costs time was found."))
    return rows + [("•", Content.styled(f"{problem}.", "$warning")) for problem in state.source_problems]


def _goal_text(goal: Goal, budget_s: float) -> str:
    limit = f", at most {format_bytes(goal.memory_limit_bytes)}" if goal.memory_limit_bytes else ""
    if goal.latency_limit_ms:
        limit += f", calls of at most {format_ms(goal.latency_limit_ms)}"
    return f"{goal.words.short.format(kept=goal.kept_speed)}{limit}, within {format_seconds(budget_s)}"


def note_lines(state: SessionState, goal: Goal, budget_s: float) -> list[Fact]:
    """The notes: the goal, what the workload's inspection remarked, and what the session said, latest last."""
    rows: list[Fact] = [("Goal", _goal_text(goal, budget_s))]
    if state.stack and state.stack.dropped:
        rows += [("Dropped", f"{name}: {reason}") for name, reason in state.stack.dropped.items()]
    told = state.baseline.result.notes if state.baseline else ()
    remarks = state.facts.workload.notes if state.facts else ()
    rows += [("Note", note) for note in remarks if note not in told]
    for said in state.messages[-_MOST_MESSAGES:]:
        label, style = _SEVERITIES.get(said.severity, ("Note", ""))
        rows.append((label, Content.styled(said_text(said), style)))
    return rows


_BAR = 24
_NUMBER = 9


def clock_facts(clock: ClockCheck | None) -> list[Fact]:
    """Each clock's reading of the same step as a bar, the headline last."""
    if clock is None:
        return []
    readings = [
        ("unsynchronised", clock.naive_ms),
        ("synchronised every step", clock.synchronized_ms),
        *([("events", clock.events_ms)] if clock.events_ms is not None else []),
        ("reported", clock.block_ms),
    ]
    longest = max(reading for _, reading in readings)
    rows: list[Fact] = []
    for name, reading in readings:
        is_headline = name == "reported"
        drawn = meter(reading / longest if longest else 0.0, _BAR, "$accent" if is_headline else "$primary")
        shown = f"{format_ms(reading):>{_NUMBER}}"
        rows.append((name, Content.assemble(drawn, (shown, "bold" if is_headline else ""))))
    return rows


_STEPS = ("load", "baseline", "leap", "search", "confirm")
_STEP_OF = {
    "starting": "load",
    "baseline": "baseline",
    "leap": "leap",
    "instruments": "search",
    "search": "search",
    "alone": "search",
    "confirmation": "confirm",
}
_TEACHES = {
    "load": "Your model is loaded in a process of its own; nothing of yours is changed.",
    "baseline": "Your present settings are timed first: every speed-up is against them.",
    "leap": "Settings that usually win are tried together, since effects do not add up.",
    "search": "Settings are added, left out and swapped, the most promising first.",
    "confirm": "The best stack and the baseline take turns, so that drift cancels.",
}


def plan_text(state: SessionState, budget_s: float, ends: datetime | None = None) -> Content:
    """Return the steps with their marks, and the expected end.

    Until an end can be expected, the budget stands in its place. Empty once the session is over.
    """
    if state.finished or state.failure:
        return Content("")
    place = _STEPS.index(step_now(state))
    marks = [
        Content.assemble((f"{step} ✓", "$success"))
        if position < place
        else Content.assemble((f"{step} ▶", "bold $accent"))
        if position == place
        else Content.styled(f"{step} ·", DIM)
        for position, step in enumerate(_STEPS)
    ]
    end = f"ends about {ends:%H:%M}" if ends and not state.held else f"at most {format_seconds(budget_s)}"
    return Content("  ").join(marks) + Content.styled(f"   {end}", DIM)


def doing_text(state: SessionState, width: int) -> Content:
    """Return the running trial with its latest step times; before its first block, a sentence about the plan's step."""
    runs = state.running and state.live_ms
    return live_text(state, width) if runs else Content.styled(_TEACHES[step_now(state)], DIM)


def step_now(state: SessionState) -> str:
    """Return the step of the plan that a session is at: loading lasts until the workload is known."""
    step = _STEP_OF.get(state.stage, "confirm")
    return "load" if step == "baseline" and state.is_loading else step


_NAME = 18
_LEAST_BAR = 12
_WIDEST_BAR = 46
_WIDE_FIGURE, _FIGURE = 66, 30
_LEAST_WIDE_BAR = 24


def waterfall_text(chart: Bars, width: int) -> Content:
    """The baseline, a line for each setting of the stack, and the stack."""
    wide = width >= _NAME + _LEAST_WIDE_BAR + _WIDE_FIGURE + 3
    room = max(_LEAST_BAR, min(_WIDEST_BAR, width - _NAME - (_WIDE_FIGURE if wide else _FIGURE) - 3))
    ends = [end for bar in chart.bars for end in (bar.start, bar.end)]
    low = min(ends)
    axis = Axis("", low, max(*ends, SMALL_EFFECT * low), log=True)  # a cell is too much to leave free beside the bars
    return Content("\n").join([_line(bar, axis, room, wide=wide) for bar in chart.bars])


def _line(bar: Bar, axis: Axis, room: int, *, wide: bool) -> Content:
    name = f"{shortened(bar.name, _NAME):<{_NAME}} "
    return Content.assemble(name, _drawn(bar, axis, room), "  ", _figure(bar, wide=wide))


def _drawn(bar: Bar, axis: Axis, room: int) -> Content:
    """The bar, ``room`` cells wide; a setting that costs speed is hatched."""
    low, high = sorted(round(axis.place(end) * (room - 1)) for end in (bar.start, bar.end))
    if bar.is_mark:
        return Content.assemble(" " * low, ("▏", DIM), " " * (room - low - 1))
    length = max(1, high - low)
    low = min(low, room - length)
    filled = ("▒" if bar.end < bar.start else "█") * length
    return Content.assemble(" " * low, (filled, TONES[bar.tone]), " " * (room - low - length))


def _figure(bar: Bar, *, wide: bool) -> Content:
    styles = {Tone.STACK: "bold", Tone.FASTER: f"bold {TONES[bar.tone]}", Tone.SLOWER: f"bold {TONES[bar.tone]}"}
    details = bar.details if wide else bar.details[:1] if bar.tone is Tone.STACK else ()
    return Content.assemble((bar.text, styles.get(bar.tone, DIM)), *((f"  {part}", DIM) for part in details))
