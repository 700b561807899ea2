"""The whole report of a session as a document: the decision first, the evidence later."""

from collections.abc import Iterator

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, link_rows
from advisor.recipe.catalog import Catalog
from advisor.records import Facts, Hardware
from advisor.report import evidence
from advisor.report.document import Bullets, Document, Inline, Listing, Picture, Section, Table
from advisor.report.pareto import pareto_section
from advisor.report.pictures import pictures
from advisor.report.reproduce import code_section, method, reproduce_section
from advisor.report.several_gpus import several_gpus_section
from advisor.report.trials import (
    batch_advice,
    habit_rows,
    habits_table,
    settings_sections,
    source,
    stack_blocks,
    untried_table,
)
from advisor.report.verdict import verdict
from advisor.version import __version__


def document_of(state: SessionState, request: Request, catalog: Catalog, change: str = "") -> Document:
    """The report of a session, with the change of the user's own file as a diff. The session may still run."""
    changed = [Section("The change in your file", (Listing(change, "diff"),))] if change else []
    return Document(
        f"perf-advisor: {request.target.command}",
        verdict(state),
        (*changed, *sections(state, catalog), *_background(state, request)),
        f"Made by perf-advisor {__version__}.",
    )


def sections(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    """The sections of the report, the decision first. A summary shows what is brief of them."""
    if warnings := tuple(evidence.caveats(state)):
        yield Section("Read this first", (Bullets(warnings),), warns=True)
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield Section("The settings together", tuple(stack_blocks(state, state.stack)))
    yield from settings_sections(state, catalog)
    yield from several_gpus_section(state.scaling)
    yield from code_section(state, catalog)
    if drawn := tuple(map(Picture, pictures(state))):
        yield Section("Pictures", drawn, brief=())
    yield from pareto_section(state)
    yield from evidence.sweep_section(state, batch_advice(state, catalog))
    if state.source_files:
        yield Section("Found in your source", tuple(source(state)))
    yield from _evidence(state, catalog)


def _evidence(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    profile = state.profile
    if state.baseline:
        yield Section("Baseline", tuple(evidence.baseline_blocks(state.baseline, state.facts)))
    if profile:
        yield from evidence.time_section(profile)
        yield from evidence.roof_section(state)
    yield from evidence.cpu_section(state)
    rows = habit_rows(state)
    habits = [*([habits_table(rows, catalog)] if rows else ()), *(evidence.waits_blocks(profile) if profile else ())]
    if habits:
        yield Section("Habits, way by way", tuple(habits))
    if table := untried_table(state, catalog):
        yield Section("Not tried", (table,))


def _background(state: SessionState, request: Request) -> Iterator[Section]:
    """Sections that a summary leaves out: the machine, and the method of measurement."""
    if state.hardware:
        yield Section("Hardware and versions", (_hardware(state.hardware, state.facts),))
        yield reproduce_section(state, request)
    if state.baseline:
        yield Section("How the numbers were made", (Bullets(tuple(method(state, request))),))


def _hardware(hardware: Hardware, facts: Facts | None) -> Table:
    rows: list[tuple[str, Inline]] = [
        (f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}, driver {gpu.driver_version}")
        for gpu in hardware.gpus
    ]
    if hardware.gpu_note:
        rows.append(("GPU", hardware.gpu_note))
    rows += [(f"GPUs {pairs_of}", link) for pairs_of, link in link_rows(hardware.links)]
    host = hardware.host
    rows.append(("CPU", f"{host.cpu}, {host.usable_cores} of {host.logical_cores} logical cores usable"))
    rows += [("Memory", format_bytes(host.memory_total_bytes)), ("System", host.system)]
    rows += list(facts.versions.items()) if facts else []
    return evidence.pairs(rows)
