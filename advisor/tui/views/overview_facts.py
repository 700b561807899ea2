"""The overview's panels as labelled facts. Pure functions of records."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content

from advisor.experiment.objective import Goal
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
    format_count,
    format_ms,
    format_rate,
    format_seconds,
    format_setting,
)
from advisor.figures.links import link_rows
from advisor.records import BaselineRecord, Facts, GpuInfo, Hardware, HostInfo, Mode, Value, WorkloadFacts
from advisor.report.figures import noise_words
from advisor.tui.text import DIM
from advisor.tui.views.readings import cpu_text, energy_text, found_text, readings_text, remarks
from advisor.tui.widgets.fact_list import Fact

_MOST_MESSAGES = 6


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
    others = [other.name for other in hardware.gpus if other is not gpu]
    if others:
        facts.append(("More GPUs", f"{len(others)}: {', '.join(sorted(set(others)))}"))
    facts += [(f"GPUs {pairs}", link) for pairs, link in link_rows(hardware.links)]
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
    return f"{format_count(workload.parameters)} parameters, {format_bytes(workload.parameter_bytes)} {dtypes}"


def _loop(workload: WorkloadFacts) -> str:
    return "training" if workload.mode is Mode.TRAIN else "inference"


def _data(workload: WorkloadFacts) -> str:
    loader = workload.loader
    if loader is None:
        return workload.data_kind
    pinned = "pinned" if loader.pin_memory else "not pinned"
    return f"{workload.data_kind}, {loader.num_workers} workers, {pinned}"


def baseline_facts(baseline: BaselineRecord | None, facts: Facts | None) -> list[Fact]:
    """The baseline and what limits the step."""
    if baseline is None:
        return []
    result = baseline.result
    rows: list[Fact] = [
        ("Step", Content.assemble((format_ms(baseline.step_ms), "bold"), "  ", format_rate(baseline.samples_per_s))),
        *_spread(baseline),
        ("Noise", noise_words(baseline).removeprefix("noise ")),
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


def _spread(baseline: BaselineRecord) -> list[Fact]:
    """The spread of single steps. They were timed in the first run: where that was another step, it is told too."""
    steps = baseline.result.event_step_ms
    if steps is None:
        return []
    low, middle, high = steps
    told = f"{format_ms(low)} to {format_ms(high)}"
    if low <= baseline.step_ms <= high:
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
    remarks = state.facts.workload.notes if state.facts else ()
    rows += [("Note", note) for note in remarks]
    styles = {"warning": "$warning", "error": "$error"}
    latest = state.messages[-_MOST_MESSAGES:]
    rows += [("Said", Content.styled(said.text, styles.get(said.severity, ""))) for said in latest]
    return rows
