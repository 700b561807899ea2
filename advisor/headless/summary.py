"""The summary at the end of a session: result, stack, ranking, and what they rest on, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.experiment.state import SessionState
from advisor.export.evidence import (
    bound_sentence,
    caveats,
    clock_warning,
    cpu_sentence,
    roof_text,
    sweep_caveats,
    sweep_sentence,
)
from advisor.export.figures import (
    effect_words,
    energy_words,
    gpu_sentence,
    own_figures,
    verdict_shown,
    verified_words,
)
from advisor.export.pareto import PARETO_HEADINGS, pareto_rows, pareto_sentence
from advisor.export.text_report import verdict
from advisor.figures.formatting import (
    format_bytes,
    format_bytes_change,
    format_change,
    format_class,
    format_interval,
    format_ms,
    format_names,
    format_numerics,
    format_percent,
    format_rate,
    format_repayment,
    format_setting,
    format_way,
    plain,
)
from advisor.figures.sweep import HEADINGS, SweepPoint, sweep_rows
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.headless.effects import baseline_line, name_shown, stack_effect, trial_effect
from advisor.headless.terminal import print_text, table
from advisor.recipe.catalog import Catalog
from advisor.records import (
    BaselineRecord,
    HabitRow,
    Mode,
    Objective,
    Recommendation,
    StackRecord,
    TrialRecord,
    Verdict,
)
from advisor.report.conclusions import (
    Untried,
    own_notes,
    roof_shares,
    shown_by,
    stack_helps,
    sweep_of,
    tried,
    untried,
)
from advisor.report.habits import habit_rows, price_text

_RANKED = {
    Objective.THROUGHPUT: "Recommendations, best first",
    Objective.LATENCY: "Recommendations, the shortest step first",
    Objective.MEMORY: "Recommendations, the smallest memory first",
    Objective.ENERGY: "Recommendations, the least energy first",
}
# What a figure of the ranking is marked with, by whether it is unreliable and whether it was measured in turn.
_MARKS = {(False, False): "", (False, True): " *", (True, False): " !", (True, True): " *!"}
_STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.NO_DIFFERENCE: "dim",
    Verdict.FAILED: "yellow",
    Verdict.SKIPPED: "dim",
}


def print_summary(state: SessionState, file: TextIO, catalog: Catalog) -> None:
    """The ranked recommendations, the stack, the other trials and the skipped recipes, as text."""
    for title, body in _sections(state, catalog):
        print_text(Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False)), file)


def _sections(state: SessionState, catalog: Catalog) -> Iterator[tuple[str, RenderableType]]:
    """What a person decides by comes first, what it rests on later."""
    if state.baseline:
        yield "Result", Text(plain(verdict(state)))
    if warnings := [plain(text) for text in caveats(state)]:
        yield "Read this first", Text("\n".join(warnings), style="yellow")
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield "Together", _stack(state, state.stack)
    if state.recommendations:
        yield _RANKED[state.goal.objective], Group(_ranked(state), *_remarks(state, catalog))
    if front := pareto_rows(state):
        yield "Speed against memory", _pareto(state, front)
    if points := sweep_of(state):
        yield "Batch sizes", _sweep(state, points)
    if state.findings:
        yield "Found in your source", _findings(state)
    if state.baseline:
        yield "Baseline", Text("\n".join(map(plain, _baseline_lines(state, state.baseline))))
    if others := _others(state):
        yield "Other trials", _trials(others, state, catalog)
    if rows := habit_rows(state):
        yield "Habits, way by way", _habits(rows)
    if groups := untried(state):
        yield "Not tried", _pairs(("reason", "what"), ((group.reason, _names(group)) for group in groups))


def _baseline_lines(state: SessionState, baseline: BaselineRecord) -> Iterator[str]:
    """The figures, what bounds the step, and what of the surroundings a person should know; a line for each."""
    yield baseline_line(baseline)
    result = baseline.result
    if energy := energy_words(result):
        yield f"{energy}, of the whole GPU"
    if result.gpu is not None and result.gpu.samples:
        yield f"GPU meanwhile: {gpu_sentence(result.gpu)}"
    profile = state.facts.profile if state.facts else None
    if profile is not None:
        before, after = map(roof_text, roof_shares(state))
        told = " → ".join(filter(None, (before, after)))
        yield from filter(None, (bound_sentence(profile), f"Matrix-product rate: {told}." if told else ""))
        yield from filter(None, (clock_warning(profile.clock),))
    if baseline.cpu_step_ms is not None and baseline.cpu_step_ms < baseline.step_ms:
        yield cpu_sentence(baseline)
    yield from result.notes


def _ranked(state: SessionState) -> Table:
    energy = ("energy",) if state.goal.objective is Objective.ENERGY else ()
    made = table("", "recommendation", "speed-up", "step", "memory", *energy, "numerics", "stack", right=("step",))
    for column in made.columns:
        column.no_wrap = column.header not in ("recommendation", "numerics")
    own_j = state.baseline.result.energy_j_per_sample if state.baseline else None
    for item in state.recommendations:
        record = own_figures(item.record)
        mark, shown = _MARKS[bool(record.result.disturbed), record.confirmed], verdict_shown(record)
        made.add_row(
            str(item.rank),
            Text(plain(record.candidate.name)),
            Text(f"{effect_words(record)}{mark}", style=_STYLES[shown] if shown else ""),
            format_ms(record.step_ms),
            _memory(record, state.baseline),
            *(format_change(record.result.energy_j_per_sample, own_j) for _ in energy),
            format_class(record.numerics),
            _membership(item, state),
        )
    return made


def _remarks(state: SessionState, catalog: Catalog) -> Iterator[Text]:
    """What the marks of the ranking mean, and what a person has to know of single recommendations."""
    records = [own_figures(item.record) for item in state.recommendations]
    if any(record.confirmed for record in records):
        yield Text("* measured again, in turn with the baseline", style="dim")
    if any(_membership(item, state) == "ask" for item in state.recommendations):
        yield Text("ask: it changes what is computed, so it enters the stack with --allow changed only", style="dim")
    for record in records:
        for remark in _remarks_of(record, state, catalog):
            yield Text(plain(f"{record.candidate.name}: {remark}"), style="dim")


def _remarks_of(record: TrialRecord, state: SessionState, catalog: Catalog) -> Iterator[str]:
    if record.result.disturbed:
        yield f"unreliable (!): {record.result.disturbed}"
    if record.numerics and record.numerics.worse_than_declared:
        yield f"numerics {format_numerics(record.numerics)}: {record.numerics.text}"
    if record.break_even_steps != 0:
        yield format_repayment(record.break_even_steps)
    yield from shown_by(record, state, catalog)
    yield from own_notes(record.result, state)


def _sweep(state: SessionState, points: Sequence[SweepPoint]) -> Group:
    made = table(*HEADINGS, right=HEADINGS[:-1])
    for row in sweep_rows(points):
        made.add_row(*(plain(cell) for cell in row))
    mode = state.facts.workload.mode if state.facts else Mode.TRAIN
    advice = [item.why for item in state.recommendations if item.record.candidate.recipe == BATCH_SIZE]
    return Group(made, *(Text(plain(text)) for text in (*sweep_caveats(state), sweep_sentence(points, mode), *advice)))


def _pareto(state: SessionState, rows: Iterable[tuple[str, ...]]) -> Group:
    made = table(*PARETO_HEADINGS, right=PARETO_HEADINGS[1:])
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return Group(made, Text(pareto_sentence(state)))


def _memory(record: TrialRecord | StackRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def _membership(item: Recommendation, state: SessionState) -> str:
    decision = state.decisions.get(item.record.candidate.recipe)
    if item.in_stack:
        return "yes"
    if decision is not None:
        return decision.value
    return "ask" if item.needs_consent else "no"


def _change(text: Callable[[float | None], str], before: float | None, after: float | None) -> str:
    """A figure of the stack, after the baseline's as it was timed beside it."""
    return text(after) if before is None else f"{text(before)} → {text(after)}"


def _stack(state: SessionState, stack: StackRecord) -> Group:
    figures = [stack_effect(stack, state.yardstick)] if stack.settings or stack.pending else ["none"]
    if stack.settings and stack.result.measured:
        figures += [
            f"{_change(format_ms, stack.baseline_step_ms, stack.step_ms)} per step",
            _change(format_rate, stack.baseline_samples_per_s, stack.samples_per_s),
            f"memory {_memory(stack, state.baseline)}",
            f"numerics {format_numerics(stack.numerics)}",
        ]
    lines = [Text(plain(format_setting(key, value))) for key, value in stack.settings.items()]
    verified = [Text(plain(f"the export: {verified_words(state.verification)}"))] if state.verification else []
    dropped = [Text(plain(f"left out: {name} ({reason})"), style="dim") for name, reason in stack.dropped.items()]
    shown = stack.comparison.verdict if stack.comparison else Verdict.FAILED
    style = _STYLES[Verdict.FASTER if stack_helps(state) else shown]
    return Group(*lines, Text(plain(", ".join(figures)), style=style), *verified, *dropped)


def _others(state: SessionState) -> list[TrialRecord]:
    """The trials that are in no other table."""
    told = {item.record.candidate.name for item in state.recommendations}
    if sweep_of(state):
        told |= {
            name for name, record in state.trials.items() if record.candidate.recipe == BATCH_SIZE and record.alone
        }
    return [record for record in tried(state) if record.candidate.name not in told]


def _trials(records: Iterable[TrialRecord], state: SessionState, catalog: Catalog) -> Table:
    made = table("trial", "result")
    for record in records:
        result, shown = _result(record, state, catalog), verdict_shown(record)
        made.add_row(Text(plain(name_shown(record))), Text(plain(result), style=_STYLES[shown] if shown else ""))
    return made


def _result(record: TrialRecord, state: SessionState, catalog: Catalog) -> str:
    """A trial's effect, with the figure also inside the noise, and what else a person has to know of it."""
    effect = trial_effect(record, state.yardstick)
    if verdict_shown(record) is Verdict.NO_DIFFERENCE:
        undecided = Verdict.NO_DIFFERENCE.value
        effect = effect.replace(undecided, f"{undecided}: {format_interval(record.own_effect)}", 1)
    remarks = [*shown_by(record, state, catalog)]
    if record.numerics and record.numerics.worse_than_declared:
        remarks.append(f"numerics {format_numerics(record.numerics)}")
    recipe = catalog.recipes.get(record.candidate.recipe)
    if recipe is not None and recipe.expensive:  # why compiling was worth no more: graph breaks, compiled again
        remarks += own_notes(record.result, state)
    return "; ".join((effect, *remarks))


def _habits(rows: Iterable[HabitRow]) -> Table:
    made = table("habit", "way", "its phase", "step", "share", "memory", right=("its phase", "step", "share", "memory"))
    for row in rows:
        figures = (format_ms(row.phase_ms), format_ms(row.step_ms), format_percent(row.share, digits=1))
        made.add_row(row.habit, format_way(row), *figures, format_bytes(row.memory_bytes))
    return made


def _findings(state: SessionState) -> Table:
    made = table("where", "what", "instead", "measured")
    for finding in state.findings:
        told = (finding.place, finding.what, finding.advice, price_text(finding, state))
        made.add_row(*(Text(plain(text)) for text in told))
    return made


def _names(group: Untried) -> str:
    return ", ".join(filter(None, (format_names(group.candidates), *group.recipes)))


def _pairs(columns: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> Table:
    made = table(*columns)
    for left, right in pairs:
        made.add_row(Text(plain(left)), Text(plain(right)))
    return made
