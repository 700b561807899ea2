"""The report for people, in Markdown or as one HTML file: both are rendered from the same sections."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import advisor
from advisor.catalog import Catalog
from advisor.export.settings_file import hardware_line
from advisor.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_bytes_change,
    format_count,
    format_found,
    format_interval,
    format_ms,
    format_noise,
    format_numerics,
    format_outcome,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_setting,
    format_verdict,
    format_way,
)
from advisor.records import (
    BaselineRecord,
    Facts,
    Finding,
    HabitRow,
    Hardware,
    Mode,
    Recommendation,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
    Verdict,
)
from advisor.session.habits import habit_rows, price_of
from advisor.session.request import Request
from advisor.session.state import SessionState
from advisor.settings import Settings


@dataclass(frozen=True, slots=True)
class _Code:
    """Text in a fixed-width face: a setting, a path."""

    text: str


@dataclass(frozen=True, slots=True)
class _Share:
    """A share of 0 to 1, with a bar where bars can be drawn."""

    share: float


_Inline = str | _Code | _Share


@dataclass(frozen=True, slots=True)
class _Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class _Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Listing:
    """Lines of YAML."""

    text: str


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows under headings; the columns named in ``numbers`` are aligned to the right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[_Inline, ...], ...]
    numbers: frozenset[str] = frozenset()


_Block = _Paragraph | _Bullets | _Listing | _Table


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    blocks: tuple[_Block, ...]


def markdown_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The report of a session, also of one that has not ended, as Markdown."""
    lines = [f"# {_markdown(_title(request))}", "", _markdown(_summary(state))]
    for section in _sections(state, request, catalog):
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines += ["", *_markdown_block(block)]
    return "\n".join([*lines, "", f"Made by perf-advisor {advisor.__version__}."]) + "\n"


def html_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The same report as one HTML file that needs nothing else, light or dark as the reader's system is."""
    title = html.escape(_title(request))
    parts = [f"<h1>{title}</h1>", f'<p class="summary">{html.escape(_summary(state))}</p>']
    for section in _sections(state, request, catalog):
        blocks = "\n".join(_html_block(block) for block in section.blocks)
        parts.append(f"<section>\n<h2>{html.escape(section.title)}</h2>\n{blocks}\n</section>")
    parts.append(f"<footer>Made by perf-advisor {html.escape(advisor.__version__)}.</footer>")
    filled = {"@title@": title, "@body@": "\n".join(parts)}
    return re.sub("@(title|body)@", lambda match: filled[match[0]], _PAGE)


# --- what the report says -------------------------------------------------------------------------------------


def _title(request: Request) -> str:
    return f"perf-advisor: {request.target.target}"


def _summary(state: SessionState) -> str:
    """The session in one or two sentences."""
    if state.failure:
        return f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")
    if state.baseline is None:
        return "Nothing has been measured."
    interrupted = state.finished is None or state.finished.cancelled
    remark = " The session did not run to its end: this is what was measured until then." if interrupted else ""
    return _result_sentence(state, state.baseline) + remark


def _result_sentence(state: SessionState, baseline: BaselineRecord) -> str:
    where = f" on {hardware_line(state.hardware)}" if state.hardware else ""
    stack = state.stack
    if stack is not None and stack.comparison is not None and stack.comparison.verdict is Verdict.FASTER:
        count = len(stack.settings)
        settings = f"{count} settings together make" if count != 1 else "One setting makes"
        how = "confirmed in turns with the baseline" if stack.confirmed else "not yet confirmed"
        return (
            f"{settings} {_subject(state)} {format_interval(stack.comparison)} as fast{where}, {how}: "
            f"{format_ms(stack.baseline_step_ms or baseline.step_ms)} a step before, {format_ms(stack.step_ms)} tuned."
        )
    faster = len(state.recommendations) or "none"
    combined = "no settings were combined" if stack is None else "together they are not measurably faster"
    return f"Of {len(state.trials)} candidates for {_subject(state)}{where}, {faster} measured faster; {combined}."


def _subject(state: SessionState) -> str:
    if state.facts is None:
        return "the workload"
    loop = "training" if state.facts.workload.mode is Mode.TRAIN else "inference"
    return f"{state.facts.workload.model} {loop}"


def _sections(state: SessionState, request: Request, catalog: Catalog) -> Iterator[_Section]:
    if state.hardware:
        yield _Section("Hardware and versions", (_hardware(state.hardware, state.facts),))
    if state.baseline:
        yield _Section("Baseline", tuple(_baseline(state.baseline, state.facts)))
    if state.facts and state.facts.profile:
        yield _Section("Where the time goes", tuple(_profile(state.facts)))
    if state.recommendations:
        yield _Section("Recommendations", tuple(_recommendations(state)))
    if state.stack:
        yield _Section("The settings together", tuple(_stack(state, state.stack)))
    if state.trials:
        yield _Section("All trials", (_trials(state, catalog),))
    if state.skipped:
        yield _Section("Not tried", (_skipped(state, catalog),))
    if rows := habit_rows(state):
        yield _Section("Habits, way by way", (_habits(rows, catalog),))
    if state.source_files:
        yield _Section("Found in the source", tuple(_source(state)))
    if state.baseline:
        yield _Section("How the numbers were made", (_Bullets(tuple(_method(state, request))),))


def _pairs(rows: Sequence[tuple[str, _Inline]]) -> _Table:
    return _Table(("", ""), tuple(rows))


def _hardware(hardware: Hardware, facts: Facts | None) -> _Table:
    rows: list[tuple[str, _Inline]] = [
        (f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}, driver {gpu.driver_version}")
        for gpu in hardware.gpus
    ]
    if hardware.gpu_note:
        rows.append(("GPU", hardware.gpu_note))
    host = hardware.host
    rows.append(("CPU", f"{host.cpu}, {host.usable_cores} of {host.logical_cores} logical cores usable"))
    rows += [("Memory", format_bytes(host.memory_total_bytes)), ("System", host.system)]
    rows += list(facts.versions.items()) if facts else []
    return _pairs(rows)


def _baseline(baseline: BaselineRecord, facts: Facts | None) -> Iterator[_Block]:
    rows: list[tuple[str, _Inline]] = []
    if facts:
        workload = facts.workload
        rows += [
            ("Model", f"{workload.model}, {format_count(workload.parameters)} parameters, {workload.mode}"),
            ("Device", f"{workload.device} ({workload.device_name})"),
            ("Batch", workload.batch_text),
        ]
        if workload.optimizer:
            rows.append(("Optimizer", workload.optimizer.name))
    rows += [
        ("Step", format_ms(baseline.step_ms)),
        ("Throughput", format_rate(baseline.samples_per_s)),
        ("Peak memory", format_bytes(baseline.result.peak_reserved_bytes)),
        ("Warm-up", format_seconds(baseline.result.warmup_s)),
        ("Noise floor", format_noise(baseline.noise_floor)),
    ]
    yield _pairs(rows)


def _profile(facts: Facts) -> Iterator[_Block]:
    profile = facts.profile
    assert profile is not None
    if profile.bottleneck:
        yield _Paragraph(f"The step is bound by {profile.bottleneck}: {profile.evidence}")
    if profile.phases:
        rows = tuple(
            (name.replace("_", " "), format_ms(spent_ms), _Share(profile.share(name)))
            for name, spent_ms in profile.phases.items()
        )
        yield _Table(("Phase", "Time", "Share"), rows, frozenset({"Time"}))
    if profile.operators:
        operators = tuple(
            (_Code(row.name), format_count(row.calls), format_ms(row.host_ms), format_ms(row.device_ms))
            for row in profile.operators
        )
        headings = ("Operator", "Calls", "Host", "Device")
        yield _Table(headings, operators, frozenset(headings[1:]))


def _recommendations(state: SessionState) -> Iterator[_Block]:
    headings = ("Rank", "What", "Setting", "Speed-up", "Memory", "Numerics", "Pays back", "Remark")
    rows = tuple(_recommendation(item, state.baseline) for item in state.recommendations)
    yield _Table(headings, rows, frozenset({"Rank", "Speed-up", "Memory"}))
    yield _Bullets(tuple(f"{item.title}: {item.why}" for item in state.recommendations))


def _recommendation(item: Recommendation, baseline: BaselineRecord | None) -> tuple[_Inline, ...]:
    remarks = ["in the stack"] if item.in_stack else []
    remarks += ["changes the results or the training: needs your consent"] if item.needs_consent else []
    record = item.record
    return (
        str(item.rank),
        item.title,
        _settings_code(record.candidate.settings),
        format_ratio(record.comparison),
        _memory_change(record, baseline),
        format_numerics(record.numerics),
        format_break_even(record.break_even_steps),
        "; ".join(remarks),
    )


def _stack(state: SessionState, stack: StackRecord) -> Iterator[_Block]:
    yield _Listing(Settings(stack.settings).to_yaml())
    if stack.comparison is None:
        yield _Paragraph(f"They could not be measured together: {format_outcome(stack.result)}")
        return
    rows: list[tuple[str, _Inline]] = [
        ("Speed-up", f"{format_ratio(stack.comparison)}, {'confirmed' if stack.confirmed else 'not confirmed'}"),
        ("Step", format_ms(stack.step_ms)),
        ("Throughput", format_rate(stack.samples_per_s)),
        ("Peak memory", _stack_memory(stack, state.baseline)),
        ("Numerics", format_numerics(stack.numerics)),
        ("Pays back", format_break_even(stack.break_even_steps)),
    ]
    yield _pairs(rows)
    if stack.numerics:
        yield _Paragraph(f"Numerics: {stack.numerics.text}.")
    if stack.dropped:
        yield _Paragraph("Left out of the combination:")
        yield _Bullets(tuple(f"{key}: {reason}" for key, reason in stack.dropped.items()))


def _stack_memory(stack: StackRecord, baseline: BaselineRecord | None) -> str:
    reserved = stack.result.peak_reserved_bytes
    change = format_bytes_change(reserved, baseline.result.peak_reserved_bytes if baseline else None)
    return f"{format_bytes(reserved)} ({change})" if change != MISSING else format_bytes(reserved)


def _trials(state: SessionState, catalog: Catalog) -> _Table:
    headings = ("What", "Setting", "Verdict", "Speed-up", "Step", "Memory", "Warm-up", "Numerics", "Reason")
    rows = tuple(_trial(record, state.baseline, catalog) for record in state.trials.values())
    return _Table(headings, rows, frozenset({"Speed-up", "Step", "Memory", "Warm-up"}))


def _trial(record: TrialRecord, baseline: BaselineRecord | None, catalog: Catalog) -> tuple[_Inline, ...]:
    return (
        _name(record.candidate.recipe, catalog),
        _settings_code(record.candidate.settings),
        format_verdict(record),
        format_interval(record.comparison),
        format_ms(record.step_ms),
        _memory_change(record, baseline),
        format_seconds(record.result.warmup_s),
        format_numerics(record.numerics),
        _reason(record.result),
    )


def _reason(result: TrialResult) -> str:
    """Why a trial failed, and what to do; of one that measured, what makes its figures unreliable."""
    unreliable = f"unreliable: {result.disturbed}" if result.disturbed else ""
    return " ".join(f"{result.reason} {result.hint} {unreliable}".split())


def _skipped(state: SessionState, catalog: Catalog) -> _Table:
    rows = tuple((_name(recipe, catalog), reason) for recipe, reason in state.skipped.items())
    return _Table(("What", "Why not"), rows)


def _habits(rows: Sequence[HabitRow], catalog: Catalog) -> _Table:
    headings = ("Habit", "Way", "Its phase", "Step", "Share of the step", "Memory")
    cells = tuple(
        (
            _name(row.habit, catalog),
            format_way(row),
            format_ms(row.phase_ms),
            format_ms(row.step_ms),
            format_percent(row.share, digits=1),
            format_bytes(row.memory_bytes),
        )
        for row in rows
    )
    return _Table(headings, cells, frozenset(headings[2:]))


def _source(state: SessionState) -> Iterator[_Block]:
    read = ", ".join(state.source_files)
    yield _Paragraph(f"{format_found(len(state.findings), len(state.source_files))}: {read}. It was read, not run.")
    if state.source_problems:
        yield _Bullets(state.source_problems)
    if state.findings:
        rows = tuple(_finding(finding, state) for finding in state.findings)
        yield _Table(("Where", "Line", "What it does", "Instead", "Measured"), rows)


def _finding(finding: Finding, state: SessionState) -> tuple[_Inline, ...]:
    price = price_of(finding, state.trials.values())
    measured = f"{price.candidate.name}: {format_interval(price.comparison)}" if price else MISSING
    return finding.place, _Code(finding.text), finding.what, finding.advice, measured


def _name(recipe_id: str, catalog: Catalog) -> str:
    recipe = catalog.recipes.get(recipe_id)
    return recipe.title if recipe else recipe_id


def _settings_code(settings: dict[str, Value]) -> _Code:
    return _Code(", ".join(format_setting(key, value) for key, value in settings.items()))


def _memory_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def _method(state: SessionState, request: Request) -> Iterator[str]:
    on_cuda = state.facts is not None and state.facts.on_cuda
    noise = format_noise(state.baseline.noise_floor if state.baseline else None)
    yield "Every trial ran in a process of its own, with the same seed and the same batches."
    yield (
        "A step's time is wall time per step over blocks of back-to-back steps, after a warm-up until the steps were "
        "steady. The warm-up is reported apart; the steps after which a slower start has paid back follow from it."
    )
    yield (
        "A speed-up is the ratio of samples per second to the baseline's, with the 95 % bootstrap interval of the "
        f"ratio of medians. It counts only when the whole interval clears the noise floor, here {noise}: what "
        "identical runs differ by."
    )
    if state.stack and state.stack.comparison and state.stack.comparison.paired:
        yield "The settings together were measured alternately with the baseline (A B B A), so that drift cancels."
    yield (
        "Memory is the peak that PyTorch's allocator reserved on the GPU."
        if on_cuda
        else "Memory is the peak resident set of the trial's process."
    )
    yield "Numerics compare the first losses, outputs and weights with the baseline's; close is what rounding explains."
    if state.facts and state.facts.profile:
        yield "The phases come from a separate pass with waits between them; their sum can exceed the step."
    if state.finished:
        yield (
            f"The session took {format_seconds(state.finished.session_s)} of a budget of "
            f"{format_seconds(request.budget_s)}."
        )


# --- Markdown -------------------------------------------------------------------------------------------------


def _markdown_block(block: _Block) -> list[str]:
    match block:
        case _Paragraph(text):
            return [_markdown(text)]
        case _Bullets(items):
            return [f"- {_markdown(item)}" for item in items]
        case _Listing(text):
            fence = "`" * max(3, 1 + _longest_run(text))
            return [f"{fence}yaml", *text.rstrip("\n").split("\n"), fence]
        case _Table():
            return _markdown_table(block)


def _markdown_table(table: _Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---:" if heading in table.numbers else "---" for heading in table.headings]
    return [row(table.headings), row(rules), *(row([_markdown_inline(cell) for cell in cells]) for cells in table.rows)]


def _markdown_inline(inline: _Inline) -> str:
    match inline:
        case _Code(text):
            return _markdown_code(text)
        case _Share(share):
            return format_percent(share, digits=1)
        case _:
            return _markdown(inline)


def _markdown(text: str) -> str:
    """Text with everything that Markdown or HTML would take for markup escaped, on one line."""
    escaped = re.sub(r"([\\`*\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)


def _markdown_code(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (1 + _longest_run(line))
    space = " " if len(ticks) > 1 else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


# --- HTML -----------------------------------------------------------------------------------------------------


def _html_block(block: _Block) -> str:
    match block:
        case _Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case _Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case _Listing(text):
            return f"<pre>{html.escape(text)}</pre>"
        case _Table():
            return _html_table(block)


def _html_table(table: _Table) -> str:
    kinds = [' class="number"' if heading in table.numbers else "" for heading in table.headings]

    def row(tag: str, cells: Sequence[str]) -> str:
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    head = [f"<thead>{row('th', table.headings)}</thead>"] if any(table.headings) else []
    body = [row("td", [_html_inline(cell) for cell in cells]) for cells in table.rows]
    return "\n".join(['<div class="wide"><table>', *head, "<tbody>", *body, "</tbody>", "</table></div>"])


def _html_inline(inline: _Inline) -> str:
    match inline:
        case _Code(text):
            return f"<code>{html.escape(text)}</code>"
        case _Share(share):
            width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
            return f'<span class="bar"><i style="width:{width}"></i></span> {format_percent(share, digits=1)}'
        case _:
            return html.escape(inline)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>@title@</title>
<style>
:root { --text: #1c2024; --dim: #60646c; --line: #d9dde2; --back: #fcfcfd; --soft: #f0f2f5; --mark: #0b7a5c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --dim: #9ba1a9; --line: #363a40; --back: #15181b; --soft: #1f2328; --mark: #3fc79a; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.summary { font-size: 1.15rem; border-left: .25rem solid var(--mark); padding-left: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
code, pre { font: .88em/1.5 ui-monospace, monospace; background: var(--soft); border-radius: .25rem; }
code { padding: .1rem .3rem; }
pre { padding: .8rem 1rem; overflow-x: auto; }
.bar { display: inline-block; width: 8rem; height: .6rem; background: var(--soft); border-radius: .2rem; }
.bar i { display: block; height: 100%; background: var(--mark); border-radius: .2rem; }
footer { margin-top: 3rem; color: var(--dim); font-size: .88rem; }
</style>
</head>
<body>
@body@
</body>
</html>
"""
