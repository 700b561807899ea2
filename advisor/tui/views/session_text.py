"""The card of the person's own settings: the baseline, the workload, the machine, the notes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content

from advisor.experiment.gains import whole_loop
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
from advisor.records import BaselineRecord, GpuInfo, Hardware, Mode, Profile, StackRecord, Value, WorkloadFacts
from advisor.report.figures import interval_words
from advisor.tui.context import Context
from advisor.tui.text import DIM, said_text
from advisor.tui.views.readings import cpu_text, energy_text, found_text, readings_text, remarks
from advisor.tui.widgets.fact_list import Fact

_STYLES = {"warning": "$warning", "error": "$error"}


def session_facts(context: Context) -> list[tuple[str, list[Fact]]]:
    """The sections of the card, without those that are empty."""
    state = context.state
    sections = [
        ("Baseline", _baseline(state.baseline, state.profile, state.stack) if state.baseline else []),
        ("Workload", _workload(state.facts.workload, context.defaults) if state.facts else []),
        ("Machine", hardware_facts(state.hardware, context.device_uuid)),
        ("Notes", _notes(state, context.request.goal, context.budget_s)),
        ("Found in your source", _source(state)),
    ]
    return [(title, facts) for title, facts in sections if facts]


def hardware_facts(hardware: Hardware | None, device_uuid: str | None) -> list[Fact]:
    """The GPU that is measured on, or the first, and the host."""
    if hardware is None:
        return []
    gpu = hardware.gpu_by_uuid(device_uuid) or next(iter(hardware.gpus), None)
    none: list[Fact] = [("GPU", Content.styled(hardware.gpu_note or "none found", DIM))]
    rows = _gpu(gpu) if gpu else none
    if others := [other.name for other in hardware.gpus if other is not gpu]:
        rows.append(("More GPUs", f"{len(others)}: {', '.join(sorted(set(others)))}"))
    rows += [("Links", f"{link}, {pairs}") for pairs, link in link_rows(hardware.links)]
    host = hardware.host
    cores = f"{host.usable_cores} of {host.logical_cores} cores usable"
    return [
        *rows,
        ("CPU", Content.assemble(host.cpu, (f"  {cores}", DIM))),
        ("Host", f"{format_bytes(host.memory_total_bytes)} memory, {host.system}, Python {host.python}"),
    ]


def _gpu(gpu: GpuInfo) -> list[Fact]:
    used = f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_total_bytes)} in use"
    limit = f", limit {gpu.power_limit_w:.0f} W" if gpu.power_limit_w is not None else ""
    rows: list[Fact] = [
        ("GPU", Content.assemble((gpu.name, "bold"), (f"  {used}{limit}", DIM))),
        ("Driver", f"{gpu.driver_version}, CUDA {gpu.cuda_driver_version or 'unknown'}"),
    ]
    if gpu.throttle_reasons:
        rows.append(("Throttled", Content.styled(", ".join(gpu.throttle_reasons), "$warning")))
    if gpu.mig_enabled:
        rows.append(("MIG", "on"))
    if gpu.processes:
        named = [f"{one.name} ({one.pid}, {format_bytes(one.used_memory_bytes)})" for one in gpu.processes]
        rows.append(("Others", Content.styled("; ".join(named), "$warning")))
    return rows


def _workload(workload: WorkloadFacts, defaults: Mapping[str, Value]) -> list[Fact]:
    """The workload. Of the person's present settings, only those that are not at their default."""
    dtypes = "/".join(workload.parameter_dtypes)
    count = "1 parameter" if workload.parameters == 1 else f"{format_count(workload.parameters)} parameters"
    loader, optimizer = workload.loader, workload.optimizer
    data = workload.data_kind
    if loader is not None:
        data += f", {loader.num_workers} workers, {'pinned' if loader.pin_memory else 'not pinned'}"
    loop = "training" if workload.mode is Mode.TRAIN else "inference"
    rows: list[Fact] = [
        (
            "Model",
            Content.assemble((workload.model, "bold"), f"  {count}, {format_bytes(workload.parameter_bytes)} {dtypes}"),
        ),
        ("Mode", f"{loop} on {workload.device_name}"),
        ("Batch", f"{'?' if workload.batch_size is None else workload.batch_size}: {workload.batch_text}"),
        ("Data", data),
        ("Loss", workload.loss),
    ]
    if optimizer:
        rows.append(("Optimizer", f"{optimizer.name} ({optimizer.implementation}), {optimizer.tensors} tensors"))
    own = {key: value for key, value in workload.current.items() if defaults.get(key, MISSING) != value}
    listed = [format_setting(key, value) for key, value in sorted(own.items())]
    if others := len(workload.current) - len(own):
        listed.append(f"{'the other' if own else 'all'} {others} at PyTorch's default")
    return [*rows, *([("Settings", Content.styled(", ".join(listed), DIM))] if listed else [])]


def _baseline(baseline: BaselineRecord, profile: Profile | None, stack: StackRecord | None) -> list[Fact]:
    """The baseline and what limits the step; also its step during the final comparison where that was another."""
    result = baseline.result
    rows: list[Fact] = [
        ("Step", Content.assemble((format_ms(baseline.step_ms), "bold"), "  ", format_rate(baseline.samples_per_s))),
        ("Interval", interval_words(baseline)),
    ]
    beside = format_ms(stack.baseline_step_ms if stack and stack.confirmed else None)
    if beside not in (MISSING, format_ms(baseline.step_ms)):
        rows.append(("Later", f"{beside} during the final comparison; the list is against this"))
    if result.event_step_ms is not None:
        low, middle, high = map(format_ms, result.event_step_ms)
        rows.append(("Single", Content.styled(f"{middle} ({low} to {high}), single steps of the first run", DIM)))
    if profile and profile.kind_of_step:
        rows.append(("Limit", Content.assemble((profile.kind_of_step, "bold $accent"), "  ", profile.evidence)))
    rows.append(("Memory", f"{format_bytes(result.peak_reserved_bytes)} peak"))
    beside_it = (
        ("Energy", energy_text(result, None)),
        ("GPU", readings_text(result.gpu)),
        ("On CPU", cpu_text(baseline)),
    )
    rows += [(label, text) for label, text in beside_it if text is not None]
    rows.append(("Start-up", f"{format_seconds(result.startup_s)}, warm-up {format_seconds(result.warmup_s)}"))
    return [*rows, *remarks(result)]


def _notes(state: SessionState, goal: Goal, budget_s: float) -> list[Fact]:
    """The goal, what the inspection remarked, and what the session said, the latest last."""
    limit = f", at most {format_bytes(goal.memory_limit_bytes)}" if goal.memory_limit_bytes else ""
    if goal.latency_limit_ms:
        limit += f", calls of at most {format_ms(goal.latency_limit_ms)}"
    words = goal.words.short.format(kept=goal.kept_speed)
    rows: list[Fact] = [("Goal", f"{words}{limit}, within {format_seconds(budget_s)}")]
    told = state.baseline.result.notes if state.baseline else ()
    rows += [("Loop", text) for text in filter(None, [whole_loop(state)])]
    rows += [("Note", note) for note in (state.facts.workload.notes if state.facts else ()) if note not in told]
    for said in state.messages:
        label = "Note" if said.severity == "information" else said.severity.capitalize()
        rows.append((label, Content.styled(said_text(said), _STYLES.get(said.severity, ""))))
    return rows


def _source(state: SessionState) -> list[Fact]:
    """The findings in the person's source; empty when no file was read."""
    rows: list[Fact] = [("•", found_text(finding)) for finding in state.findings]
    if state.source_files and not state.findings:
        rows.append(("•", f"{', '.join(state.source_files)}: nothing slow found."))
    return rows + [("•", Content.styled(f"{problem}.", "$warning")) for problem in state.source_problems]
