"""The evidence for a verdict: caveats, the baseline, the machine, the profile, the roof, batch sizes, habits."""

from collections.abc import Iterable, Iterator

from advisor.experiment.state import SessionState
from advisor.figures import sweep
from advisor.figures.formatting import (
    MISSING,
    counted,
    format_amount,
    format_bytes,
    format_count,
    format_ms,
    format_percent,
    format_rate,
    format_seconds,
    format_setting,
    interval_or_words,
)
from advisor.figures.roof import overhead_share, step_copy_share
from advisor.recipe.catalog import Catalog
from advisor.records import Facts, Finding, HabitRow, Hardware, Mode, Profile, TrialRecord, text_of
from advisor.report import figures
from advisor.report.document import Code, Inline, Section, Table, by_heading, pairs, section, table_of
from advisor.report.rows import title_of

_OPERATORS_SHOWN = 10
_MOST_OF_A_PEAK = 1.5  # a larger share of a measured peak rate contradicts it; fast algorithms reach more than 1


def caveats_section(state: SessionState) -> Section:
    """Warnings, disturbances, and figures that contradict each other, if there are any."""
    stack = state.stack if state.stack_settings else None
    caveats = [figures.as_sentence(said.text) for said in state.messages if said.severity != "information"]
    if stack and stack.result.disturbed:
        caveats.append(f"The settings together are unreliable: {stack.result.disturbed}.")
    caveats += [
        f"A step reaches {reached.words}, more than a peak allows: other programs slowed the peak's measurement, or "
        "the step uses a faster algorithm."
        for reached in figures.roof_shares(state)
        if reached and reached.share > _MOST_OF_A_PEAK
    ]
    if (found := state.verification) and not figures.file_finding(state, found)[0]:
        caveats.append(f"The exported file is {figures.file_finding(state, found)[1]}.")
    return section("Read this first", tuple(caveats), warns=True)


# --- the baseline ---------------------------------------------------------------------------------------------


def baseline_section(state: SessionState, catalog: Catalog | None = None) -> Section:
    """The section on the baseline: the limit of the step, the workload, and the measurements with the own settings."""
    limit = ""
    if (profile := state.profile) and profile.kind_of_step:
        subject = "The step is" if profile.bottleneck else "What limits the step is"
        limit = figures.as_sentence(f"{subject} {profile.kind_of_step}: {profile.evidence}")
    table = pairs([*workload_rows(state.facts, catalog), *measured_rows(state)])
    return section("Baseline", limit, table, state.baseline.result.notes if state.baseline else ())


def workload_rows(facts: Facts | None, catalog: Catalog | None = None) -> Iterator[tuple[str, str]]:
    """The rows about the workload, and the user's present settings that differ from the catalogue's defaults."""
    if facts is None:
        return
    workload, dtypes = facts.workload, "/".join(facts.workload.parameter_dtypes)
    count = f"{format_count(workload.parameters)} parameter{'s' * (workload.parameters != 1)}"
    yield "Model", f"{workload.model}, {count}, {format_bytes(workload.parameter_bytes)} {dtypes}"
    yield "Loop", f"{'training' if workload.mode is Mode.TRAIN else 'inference'} on {workload.device_name}"
    yield "Batch", workload.batch_text
    loader = workload.loader
    workers = f", {loader.num_workers} workers, {'' if loader.pin_memory else 'not '}pinned" if loader else ""
    yield "Data", f"{workload.data_kind}{workers}"
    yield "Loss", workload.loss
    if optimizer := workload.optimizer:
        yield "Optimizer", f"{optimizer.name} ({optimizer.implementation}), {optimizer.tensors} tensors"
    defaults = {recipe.key: recipe.default for recipe in catalog or ()}
    own = {key: value for key, value in workload.current.items() if defaults.get(key, MISSING) != value}
    if catalog and workload.current:
        listed = [format_setting(key, value) for key, value in sorted(own.items())]
        yield "Settings", ", ".join([*listed, f"{'the others' if own else 'all'} at PyTorch's default"])


def measured_rows(state: SessionState) -> Iterator[tuple[str, Inline]]:
    """The measurements with the user's own settings."""
    baseline = state.baseline
    if baseline is None:
        return
    result = baseline.result
    yield "Step", f"{format_ms(baseline.step_ms)}, {figures.interval_words(baseline)}"
    later = format_ms(state.stack.baseline_step_ms if state.stack and state.stack.confirmed else None)
    if later not in (MISSING, format_ms(baseline.step_ms)):
        yield "Step, later", f"{later} during the final comparison; the settings are compared with this"
    if result.event_step_ms:
        low, middle, high = map(format_ms, result.event_step_ms)
        yield "Single steps", f"median {middle}, 5th to 95th percentile {low} to {high}"
    if latency := result.latency:
        yield "Single calls", f"{figures.call_words(latency)} ({latency.calls} calls, each waited for)"
    yield "Throughput", format_rate(baseline.samples_per_s)
    if rate := figures.tokens_per_s(state.facts, baseline.samples_per_s):
        yield "Generated", format_rate(rate, "tokens")
    yield "Peak memory", format_bytes(result.peak_reserved_bytes)
    if energy := figures.energy_words(result.energy_j_per_sample):
        yield "Energy", f"{energy}, whole GPU"
    if result.gpu is not None and (readings := figures.gpu_words(result.gpu)):
        yield "GPU", readings
    yield "Start-up", f"{format_seconds(result.startup_s)}, warm-up {format_seconds(result.warmup_s)}"


def hardware_table(hardware: Hardware, facts: Facts | None) -> Table:
    """The machine and the versions: each GPU with its limits and other programs on it, then the host."""
    rows: list[tuple[str, Inline]] = []
    for gpu in hardware.gpus:
        named = [f"{one.name} ({one.pid}, {format_bytes(one.used_memory_bytes)})" for one in gpu.processes]
        parts = (
            f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}, driver {gpu.driver_version}",
            f"limit {gpu.power_limit_w:.0f} W" if gpu.power_limit_w is not None else "",
            f"throttled by {', '.join(gpu.throttle_reasons)}" if gpu.throttle_reasons else "",
            "MIG on" if gpu.mig_enabled else "",
            f"also used by {'; '.join(named)}" if named else "",
        )
        rows.append((f"GPU {gpu.index}", ", ".join(filter(None, parts))))
    rows += [("GPU", hardware.gpu_note)] if hardware.gpu_note else []
    host = hardware.host
    rows.append(("CPU", f"{host.cpu}, {host.usable_cores} of {host.logical_cores} logical cores usable"))
    rows += [("Features", ", ".join(host.cpu_features))] if host.cpu_features else []
    rows += [("Memory", format_bytes(host.memory_total_bytes)), ("System", f"{host.system}, Python {host.python}")]
    rows += list(facts.versions.items()) if facts else []
    return pairs(rows)


# --- the profile ----------------------------------------------------------------------------------------------


def time_section(state: SessionState, profile: Profile) -> Section:
    """The phases of the step, and the operators with the most time of their own on the device (else on the host)."""
    on_device, longest = figures.by_own_time(profile.operators)
    where, more = "device" if on_device else "host", len(longest) - _OPERATORS_SHOWN
    left_out = f" ({more} more in the JSON report)" if more > 0 else ""
    told = (
        (Code(row.name), format_count(row.calls), format_ms(row.device_ms) if on_device else "", format_ms(row.host_ms))
        for row in longest[:_OPERATORS_SHOWN]
    )
    cells = by_heading(("Operator", "Calls", "Device", "Host"), *told)
    words = f"Operators by their own time on the {where} in a step{left_out}:" if cells else ""
    operators = table_of(cells, ("Operator",))
    return section("Where the time goes", *phases_blocks(state, profile), words, operators, whole=True)


def phases_blocks(state: SessionState, profile: Profile) -> tuple[Table, str]:
    """The phases of the baseline's step and, if timed, of the combination's. If the phases add up to more than the
    step, a sentence says why."""
    tuned, known, rows = figures.tuned_phases(state), profile.phases, list[tuple[str, ...]]()
    for name in dict.fromkeys((*known, *tuned)) if known else ():
        share = format_percent(profile.share(name), digits=1) if name in known else MISSING
        rows.append((name.replace("_", " "), format_ms(known.get(name)), share, format_ms(tuned.get(name))))
    total, step = format_ms(sum(known.values())), format_ms(profile.step_ms)
    words = f"The phases add up to {total}, the step takes {step}: timing a phase makes the step wait."
    exceeds = sum(known.values()) > profile.step_ms and total != step
    return table_of(by_heading(("Phase", "Time", "Share", "Tuned"), *rows), ("Phase", "Share")), words * exceeds


# --- the roof -------------------------------------------------------------------------------------------------


def roof_section(state: SessionState, profile: Profile) -> Section:
    """The section on efficiency: the step against the machine's peak rates, before and after."""
    before, after = figures.roof_shares(state)
    reached = [(name, found.words) for name, found in (("Matrix products", before), ("Tuned", after)) if found]
    more = ""
    if before and after and after.share < before.share:
        more = f"The tuned share refers to the higher peak of {after.dtype}: it means more work."
    return section("Efficiency", pairs([*reached, *_step_rows(profile)]), more, whole=True)


def _step_rows(profile: Profile) -> Iterator[tuple[str, str]]:
    """The work of a step and its share of the machine's peaks, as far as measured."""
    if profile.flops_per_step:
        yield "Arithmetic", f"{format_amount(profile.flops_per_step, 'FLOP')} a step"
        if profile.ceiling_flops_per_s is None:  # with a known peak rate, the share of that rate is shown instead
            yield "Rate", format_rate(profile.flops_per_step / (profile.step_ms / 1e3), "FLOP")
    if (moving := step_copy_share(profile)) is not None:
        moved, rate = format_bytes(profile.moved_bytes_per_step), format_rate(profile.copy_bytes_per_s, "B")
        yield "Memory traffic", f"{format_percent(moving)} of {rate}, about {moved} a step"
    if profile.host_to_device_bytes:
        yield "Input", f"{format_bytes(profile.host_to_device_bytes)} a step copied to the device"
    if (busy := profile.device_busy_share) is not None:
        yield "GPU busy", f"{format_percent(busy)} of the step"
    if profile.kernels_per_step is not None:
        yield "Kernels", f"{format_count(round(profile.kernels_per_step))} a step"
    if (calling := overhead_share(profile)) is not None:
        count = format_count(profile.calls_per_step)
        yield "Launches", f"{format_percent(calling)} of the step at least ({count} operators)"


# --- the CPU and batch sizes -----------------------------------------------------------------------------------


def sweep_section(state: SessionState, catalog: Catalog) -> Section | None:
    """Throughput by batch size with its knee, and advice on the batch size. None if only one size was measured."""
    points = figures.sweep_of(state)
    if not points:
        return None
    knee, grows = sweep.knee_of(points), "the time of a step" if state.mode is Mode.TRAIN else "latency"
    if knee is None:
        said = "No size that was measured keeps the latency limit and leaves the device enough free memory."
    elif all(point.own or point.undecided for point in points if point.usable):
        said = "No size is measurably faster than the one you have."
    else:
        best = f"the smallest size within {format_percent(sweep.KNEE_TOLERANCE)} of the best usable throughput"
        said = f"{knee:,} samples is the knee: {best}. Larger sizes take more memory, and lengthen {grows}."
    why = ""
    if knee is not None and state.facts and knee != state.facts.workload.batch_size:
        why = catalog[sweep.RECIPE].why(state.facts, knee)
    return section("Batch sizes", said, table_of(sweep.sweep_rows(points), ("Remark",)), why)


# --- habits ---------------------------------------------------------------------------------------------------


def source_section(state: SessionState) -> Section | None:
    """The findings in the user's source, each with its cost if that was measured."""
    if not state.source_files:
        return None
    habits = f"{counted(len(state.findings), 'habit')} found" if state.findings else "Nothing slow found"
    read = f"in {counted(len(state.source_files), 'file')}: {', '.join(state.source_files)}. It was read, not run."
    found = list(state.source_problems)
    for one in state.findings:
        price = f" ({cost})" if (cost := price_text(one, state)) else ""
        found.append(f"{one.place}: {one.text.strip()}: {one.what}: {one.advice}{price}.")
    return section("Found in your source", f"{habits} {read}", tuple(found))


def price_text(finding: Finding, state: SessionState) -> str:
    """The cost of a finding's line, measured by a trial or by the instrumented pass; empty if not measured."""
    if record := price_of(finding, state.trials.values()):
        return f"{record.candidate.name} {interval_or_words(record.comparison)}"
    steps = {row.way: row.step_ms or 0.0 for row in habit_rows(state) if row.habit == finding.recipe}
    others = [step_ms for way, step_ms in steps.items() if way != finding.value]
    if finding.value in steps and others:
        return f"{format_ms(steps[finding.value])} a step, {format_ms(min(others))} in a better way"
    return ""


def price_of(finding: Finding, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Return the trial that measured the cost of a finding; None if there was none.

    If the user's loop uses the setting, this is the trial without it, else the trial with the line's value. If the
    finding has no value because the line lacks something, it is the recipe's best trial.
    """
    own = [record for record in records if record.candidate.recipe == finding.recipe and record.alone]
    measured = [record for record in own if record.comparison is not None]
    mended = [record for record in measured if record.candidate.already_on]
    if finding.value:
        same = [record for record in measured if text_of(record.candidate.value) == finding.value]
        return next(iter(mended or same), None)
    return max(mended or measured, key=lambda one: one.comparison.speedup if one.comparison else 0.0, default=None)


def habits_section(state: SessionState, catalog: Catalog | None) -> Section:
    """The lines that make the host wait for the device, and each habit's step time beside its alternatives'."""
    profile = state.profile
    places = (profile and profile.sync_places) or ()
    waits = [(one.place, Code(one.text), format_count(one.calls_per_step), format_ms(one.blocked_ms)) for one in places]
    lines = "Lines of the step that make the host wait for the device; only you can rewrite them:" if waits else ""
    count = (profile and profile.host_made_tensors) or 0
    made = "1 tensor is" if count == 1 else f"{count:,} tensors are"
    copied = f"{made} made on the host and copied to the device in each step." if count else ""
    ways = [
        (title_of(row.habit, catalog), row.way, format_ms(row.step_ms), format_bytes(row.memory_bytes))
        for row in habit_rows(state)
    ]
    waiting = table_of(by_heading(("Where", "Line", "Times a step", "Waits"), *waits), ("Where", "Line"))
    compared = table_of(by_heading(("Habit", "Way", "Step", "Memory"), *ways), ("Habit", "Way"))
    return section("Waits and habits", lines, waiting, copied, compared)


def habit_rows(state: SessionState) -> tuple[HabitRow, ...]:
    """The ways to do the same thing, with their step times. Older journals also hold ways without a time."""
    return tuple(row for row in state.profile.habits if row.step_ms is not None) if state.profile else ()
