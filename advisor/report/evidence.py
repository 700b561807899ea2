"""The evidence for a verdict, as sections of a report: the baseline, where its time goes, the roof.

The sentences are for the headless summary as well.
"""

from collections.abc import Iterator, Sequence

from advisor.experiment.state import SessionState
from advisor.figures import sweep
from advisor.figures.formatting import (
    format_bytes,
    format_count,
    format_ms,
    format_percent,
    format_rate,
    format_seconds,
)
from advisor.records import (
    BaselineRecord,
    Ceilings,
    Facts,
    Mode,
    OperatorRow,
    Profile,
    StackRecord,
    text_of,
)
from advisor.report import figures
from advisor.report.conclusions import RoofShare, roof_shares, sweep_of
from advisor.report.document import Block, Bullets, Code, Inline, Paragraph, Section, Share, Table

_OPERATORS_SHOWN = 10
_THREADS = "cpu.threads"


def pairs(rows: Sequence[tuple[str, Inline]]) -> Table:
    """A table of names and their values."""
    return Table(("", ""), tuple(rows))


# --- sentences ------------------------------------------------------------------------------------------------


def caveats(state: SessionState) -> Iterator[str]:
    """Sentences to read before believing a figure: warnings, and disturbances of the baseline or the stack."""
    yield from (f"{_capitalised(said.text.rstrip('.'))}." for said in state.messages if said.severity != "information")
    if state.baseline is not None and state.baseline.result.disturbed:
        yield f"The baseline is unreliable: {state.baseline.result.disturbed}."
    gpu = state.baseline.result.gpu if state.baseline else None
    if gpu is not None and gpu.foreign_processes:
        others = figures.company(gpu.foreign_processes)
        yield f"While the baseline was timed, {others}; even an idle one can slow launches."
    if state.stack is not None and state.stack.settings:
        yield from _stack_caveats(state.stack, state.baseline)


def _stack_caveats(stack: StackRecord, baseline: BaselineRecord | None) -> Iterator[str]:
    if stack.result.disturbed:
        yield f"The settings together are unreliable: {stack.result.disturbed}."
    if _THREADS in stack.settings and baseline is not None and baseline.result.disturbed:
        yield (
            f"{_THREADS}: {text_of(stack.settings[_THREADS])} gains less on a quiet machine: beside other programs "
            "every operator waits for the thread that has no core."
        )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def bound_sentence(profile: Profile) -> str:
    """The bottleneck in a sentence, with the evidence; empty where that is not known."""
    if not profile.kind_of_step:
        return ""
    subject = "The step is" if profile.bottleneck else "What limits the step is"
    return f"{subject} {profile.kind_of_step}: {profile.evidence.rstrip('.')}."


def cpu_sentence(baseline: BaselineRecord) -> str:
    """The same step on the CPU against the GPU; empty where that was not tried."""
    words = figures.on_cpu(baseline)
    return f"On this machine's CPU the same step takes {words}." if words else ""


def roof_text(reached: RoofShare | None) -> str:
    """``94 % of 51.0 TFLOP/s float32``; empty where it is not known."""
    return figures.roof_figure(reached).words if reached else ""


# --- the baseline ---------------------------------------------------------------------------------------------


def baseline_blocks(baseline: BaselineRecord, facts: Facts | None) -> Iterator[Block]:
    """The workload, and the measurements with the user's own settings."""
    yield pairs([*_workload(facts), *_measured(baseline, facts)])
    if baseline.result.notes:
        yield Bullets(baseline.result.notes)


def _workload(facts: Facts | None) -> Iterator[tuple[str, Inline]]:
    if facts is None:
        return
    workload = facts.workload
    yield "Model", f"{workload.model}, {format_count(workload.parameters)} parameters"
    yield "Loop", f"{'training' if workload.mode is Mode.TRAIN else 'inference'} on {workload.device_name}"
    yield "Batch", workload.batch_text
    if workload.optimizer:
        yield "Optimizer", f"{workload.optimizer.name} ({workload.optimizer.implementation})"


def _measured(baseline: BaselineRecord, facts: Facts | None) -> Iterator[tuple[str, Inline]]:
    result = baseline.result
    yield "Step", format_ms(baseline.step_ms)
    if result.event_step_ms:
        low, middle, high = map(format_ms, result.event_step_ms)
        yield "Single steps", f"median {middle}, 5th to 95th percentile {low} to {high}"
    if latency := result.latency:
        shares = " / ".join(format_ms(ms) for ms in (latency.p50_ms, latency.p95_ms, latency.p99_ms))
        yield "Single calls, waited for", f"p50 / p95 / p99 of {latency.calls}: {shares}"
    yield "Throughput", format_rate(baseline.samples_per_s)
    yield "Peak memory", format_bytes(result.peak_reserved_bytes)
    if energy := figures.energy_words(result):
        yield "Energy, whole GPU", energy
    if result.gpu is not None and result.gpu.samples:
        yield "GPU meanwhile", figures.gpu_sentence(result.gpu)
    yield "Warm-up", format_seconds(result.warmup_s)
    yield "Interval of the speed", figures.interval_words(baseline)
    if rate := figures.tokens_per_s(facts, baseline.samples_per_s):
        yield "Generated", format_rate(rate, "tokens")


# --- the profile ----------------------------------------------------------------------------------------------


def time_section(profile: Profile) -> Iterator[Section]:
    """The step's bottleneck, its phases, and the operators that take most of it."""
    bound: list[Block] = [Paragraph(bound_sentence(profile))] if profile.kind_of_step else []
    phases: list[Block] = [_phases(profile)] if profile.phases else []
    operators = list(_operators(profile.operators)) if profile.operators else []
    if told := (*bound, *phases, *operators):
        yield Section("Where the time goes", told, brief=tuple(bound))


def _phases(profile: Profile) -> Table:
    device = profile.device_phases
    headings: tuple[str, ...] = ("Phase", "Time", "Share")
    rows: list[tuple[Inline, ...]] = [
        (name.replace("_", " "), format_ms(spent_ms), Share(profile.share(name)))
        for name, spent_ms in profile.phases.items()
    ]
    if device:
        headings = (*headings, "Kernels and copies")
        rows = [(*row, format_ms(device.get(name, 0.0))) for row, name in zip(rows, profile.phases, strict=True)]
    return Table(headings, tuple(rows), frozenset({"Time", "Kernels and copies"}))


def _operators(operators: Sequence[OperatorRow]) -> Iterator[Block]:
    """The operators with the most time of their own, on the device where there is one; empty columns are left out."""
    on_device = any(row.device_ms for row in operators)
    longest = sorted(operators, key=lambda row: row.device_ms if on_device else row.host_ms, reverse=True)
    shown = longest[:_OPERATORS_SHOWN]
    columns = [
        (heading, times)
        for heading, times in (
            ("Device, self", [row.device_ms for row in shown]),
            ("Device, total", [row.device_total_ms for row in shown]),
            ("Host, self", [row.host_ms for row in shown]),
            ("Host, total", [row.host_total_ms for row in shown]),
        )
        if any(times)
    ]
    rows: list[tuple[Inline, ...]] = [
        (Code(row.name), format_count(row.calls), *(format_ms(times[place]) for _, times in columns))
        for place, row in enumerate(shown)
    ]
    headings = ("Operator", "Calls", *(heading for heading, _ in columns))
    where = "device" if on_device else "host"
    more = len(operators) - len(shown)
    rest = f"; {more} more are in the JSON report" if more else ""
    yield Paragraph(
        f"Operators with the most time of their own on the {where}, a step (total: with what they call){rest}:"
    )
    yield Table(headings, tuple(rows), frozenset(headings[1:]))


def waits_blocks(profile: Profile) -> Iterator[Block]:
    """The lines at which the host waits for the device, and tensors that are made on the host in each step."""
    if profile.sync_places:
        yield Paragraph("Lines of the step that make the host wait for the device:")
        rows = tuple(
            (place.place, Code(place.text), format_count(place.calls_per_step), format_ms(place.blocked_ms))
            for place in profile.sync_places
        )
        yield Table(("Where", "Line", "Times a step", "Waits"), rows, frozenset({"Times a step", "Waits"}))
    if profile.host_made_tensors:
        count = profile.host_made_tensors
        made = "1 tensor is" if count == 1 else f"{count:,} tensors are"
        yield Paragraph(f"{made} made on the host and copied to the device in each step.")


# --- the roof -------------------------------------------------------------------------------------------------


def roof_section(state: SessionState) -> Iterator[Section]:
    """The section on efficiency: the step against the machine's peak rates, before and after, and those rates."""
    profile = state.profile
    if profile is None:
        return
    reached = [(figure.name, figure.words) for figure in _reached(*roof_shares(state))]
    if told := tuple(_roof_blocks(profile, *roof_shares(state))):
        yield Section("Efficiency", told, brief=(pairs(reached),) if reached else ())


def _roof_blocks(profile: Profile, before: RoofShare | None, after: RoofShare | None) -> Iterator[Block]:
    if rows := [(one.name, one.words) for one in (*_reached(before, after), *figures.step_figures(profile))]:
        yield pairs(rows)
    if before and after and after.share < before.share:
        yield Paragraph(f"The tuned share refers to the higher peak of {after.dtype}, so it means more arithmetic.")
    if profile.ceilings:
        yield from _ceilings(profile.ceilings)


def _reached(before: RoofShare | None, after: RoofShare | None) -> Iterator[figures.Figure]:
    if before:
        yield figures.roof_figure(before, f"Matrix-product rate{', before' if after else ''}")
    if after:
        yield figures.roof_figure(after, "Matrix-product rate, tuned")


def _ceilings(ceilings: Ceilings) -> Iterator[Block]:
    rows: list[tuple[Inline, ...]] = [(figure.name, figure.words) for figure in figures.ceiling_figures(ceilings)]
    if rows:
        when = f" on {ceilings.measured_on}" if ceilings.measured_on else ""
        yield Paragraph(f"Peak rates of this machine, measured{when}:")
        yield Table(("Ceiling", "Measured"), tuple(rows), frozenset({"Measured"}))


# --- the CPU and batch sizes -----------------------------------------------------------------------------------


def cpu_section(state: SessionState) -> Iterator[Section]:
    """The same step on the CPU; none unless a GPU session tried that."""
    if state.baseline and (on_cpu := cpu_sentence(state.baseline)):
        slower = state.baseline.cpu_step_ms and state.baseline.cpu_step_ms < state.baseline.step_ms
        sentence = (Bullets((on_cpu,)),)
        yield Section("On the CPU", sentence, brief=sentence if slower else ())


def sweep_section(state: SessionState, advice: str) -> Iterator[Section]:
    """Throughput by batch size with its knee; ``advice`` is what a larger batch asks for. Nothing for one size."""
    points = sweep_of(state)
    if not points:
        return
    blocks: list[Block] = [Paragraph(sweep_sentence(points, state.mode))]
    headings = tuple(heading.capitalize() or "Remark" for heading in sweep.headings_of(points))
    blocks.append(Table(headings, tuple(sweep.sweep_rows(points)), frozenset(headings[:-1])))
    blocks += [Paragraph(advice)] if advice else []
    yield Section("Batch sizes", tuple(blocks))


def sweep_sentence(points: Sequence[sweep.SweepPoint], mode: Mode) -> str:
    """A sentence that recommends a batch size, and says why not a larger one."""
    knee = sweep.knee_of(points)
    bounded = any(point.problem.startswith(sweep.BEYOND_LATENCY) for point in points)
    if knee is None and bounded:
        return "No size that was measured keeps the latency limit: start lower, with --batch-size 1."
    if knee is None:
        return "No size leaves the device enough free memory to be recommended."
    if all(point.own or point.undecided for point in points if point.usable):
        return "No size is measurably faster than the one you have."
    best = f"the smallest size within {format_percent(sweep.KNEE_TOLERANCE)} of the best throughput"
    if bounded:
        return f"{knee:,} samples is the size to take: of those that keep the latency limit, {best}."
    if knee == max(point.size for point in points if point.usable) > min(point.size for point in points):
        return f"{knee:,} samples is {best}, and the largest that was fit to use: a larger one may give more."
    grows = "memory and the time of a step" if mode is Mode.TRAIN else "memory and latency"
    return f"{knee:,} samples is the knee: {best}. Beyond it only {grows} grow."
