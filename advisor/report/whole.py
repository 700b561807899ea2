"""The whole report of a session as a document: what a reader decides by first, what it rests on later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import advisor
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
)
from advisor.recipe.catalog import Catalog
from advisor.records import (
    Facts,
    Hardware,
)
from advisor.report.advice import batch_advice, recommendations, stack_blocks
from advisor.report.conclusions import (
    tried,
    untried,
)
from advisor.report.document import Block, Bullets, Document, Inline, Section, Table
from advisor.report.evidence import (
    baseline_blocks,
    caveats,
    clock_section,
    pairs,
    profile_blocks,
    roof_blocks,
    sweep_section,
    waits_blocks,
)
from advisor.report.habits import habit_rows
from advisor.report.method import method
from advisor.report.pareto import pareto_section
from advisor.report.trials import habits_table, source, trials, untried_table
from advisor.report.verdict import verdict


def document_of(state: SessionState, request: Request, catalog: Catalog) -> Document:
    """The report of a session, also of one that has not ended."""
    return Document(
        f"perf-advisor: {request.target.command}",
        verdict(state),
        tuple(_sections(state, request, catalog)),
        f"Made by perf-advisor {advisor.__version__}.",
    )


def _sections(state: SessionState, request: Request, catalog: Catalog) -> Iterator[Section]:
    """What a reader decides by comes first, what it rests on later."""
    yield from _section("Read this first", [Bullets(warnings)] if (warnings := tuple(caveats(state))) else [])
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield from _section("The settings together", stack_blocks(state, state.stack))
    if state.recommendations:
        yield from _section("Recommendations", recommendations(state))
    yield from pareto_section(state)
    yield from sweep_section(state, batch_advice(state, catalog))
    if state.source_files:
        yield from _section("Found in the source", source(state))
    yield from _evidence(state, catalog)
    if state.hardware:
        yield Section("Hardware and versions", (_hardware(state.hardware, state.facts),))
    if state.baseline:
        yield Section("How the numbers were made", (Bullets(tuple(method(state, request))),))


def _evidence(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    profile = state.facts.profile if state.facts else None
    if state.baseline:
        yield from _section("Baseline", baseline_blocks(state.baseline, state.facts))
    if profile:
        yield from _section("Where the time goes", profile_blocks(profile))
        yield from _section("Efficiency", roof_blocks(state))
    yield from clock_section(state)
    if records := tried(state):
        yield from _section("All trials", trials(records, state, catalog))
    habits = [habits_table(rows, catalog)] if (rows := habit_rows(state)) else []
    yield from _section("Habits, way by way", [*habits, *(waits_blocks(profile) if profile else ())])
    if groups := untried(state):
        yield Section("Not tried", (untried_table(groups, catalog),))


def _section(title: str, blocks: Iterator[Block] | Sequence[Block]) -> Iterator[Section]:
    """A section, unless there is nothing to say in it."""
    told = tuple(blocks)
    if told:
        yield Section(title, told)


def _hardware(hardware: Hardware, facts: Facts | None) -> Table:
    rows: list[tuple[str, Inline]] = [
        (f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}, driver {gpu.driver_version}")
        for gpu in hardware.gpus
    ]
    if hardware.gpu_note:
        rows.append(("GPU", hardware.gpu_note))
    host = hardware.host
    rows.append(("CPU", f"{host.cpu}, {host.usable_cores} of {host.logical_cores} logical cores usable"))
    rows += [("Memory", format_bytes(host.memory_total_bytes)), ("System", host.system)]
    rows += list(facts.versions.items()) if facts else []
    return pairs(rows)
