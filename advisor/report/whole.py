"""The whole report of a session as a document: the decision first, the evidence later."""

from collections.abc import Iterator

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_seconds
from advisor.recipe.catalog import Catalog
from advisor.report import evidence
from advisor.report.document import Block, Bullets, Document, Listing, Paragraph, Section
from advisor.report.evidence import habits_section, source_section
from advisor.report.pictures import pictures
from advisor.report.reproduce import method, reproduce_section
from advisor.report.settings import settings_sections, stack_blocks, untried_table
from advisor.report.several_gpus import several_gpus_section
from advisor.report.verdict import verdict, whole_loop
from advisor.version import __version__


def document_of(
    state: SessionState, request: Request, catalog: Catalog, change: str = "", *, drawn: bool = False
) -> Document:
    """The report of a session, with the change of the user's own file as a diff. The session may still run.

    ``drawn``: with its pictures, for a renderer that can draw.
    """
    found = [Section("The change in your file", (Listing(change, "diff"),))] if change else []
    found += sections(state, catalog, pictures(state) if drawn else ())
    if state.hardware:
        found.append(Section("Hardware and versions", (evidence.hardware_table(state.hardware, state.facts),)))
        found.append(reproduce_section(state, request))
    if state.baseline:
        found.append(Section("How the numbers were made", (Bullets(tuple(method(state, request))),)))
    title, made_by = f"perf-advisor: {request.target.command}", f"Made by perf-advisor {__version__}."
    return Document(title, verdict(state), tuple(found), made_by)


def summary_sections(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    """The result, then the sections of the report: of a summary at the end of a session, which shows some of them."""
    if state.baseline:
        yield Section("Result", (Paragraph(verdict(state)),))
    yield from sections(state, catalog)


def sections(state: SessionState, catalog: Catalog, charts: tuple[Block, ...] = ()) -> Iterator[Section]:
    """The sections of the report, the decision first. A summary leaves out some of them."""
    yield from evidence.caveats_section(state)
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield Section("The settings together", tuple(stack_blocks(state, state.stack)))
    yield from settings_sections(state, catalog)
    yield from several_gpus_section(state.scaling)
    if charts:
        yield Section("Pictures", charts, whole=True)
    yield from evidence.sweep_section(state, catalog)
    yield from source_section(state)
    if state.baseline:
        yield Section("Baseline", tuple(evidence.baseline_blocks(state, catalog)))
    yield from evidence.time_section(state)
    yield from evidence.roof_section(state)
    yield from habits_section(state, catalog)
    if table := untried_table(state, catalog):
        yield Section("Not tried", (table,), folded=True)


# --- parts that the app shows -------------------------------------------------------------------------------------


def session_card(state: SessionState, catalog: Catalog | None, budget_s: float) -> Iterator[Section]:
    """The person's own settings in short: the baseline, the workload, the machine, the goal and the notes."""
    yield from evidence.caveats_section(state)
    if state.facts or state.baseline:
        yield Section("Baseline", tuple(evidence.baseline_blocks(state, catalog)))
    goal = state.goal
    limits = [format_bytes(goal.memory_limit_bytes)] if goal.memory_limit_bytes else []
    limits += [f"{format_ms(goal.latency_limit_ms)} a call"] if goal.latency_limit_ms else []
    most = f", at most {' and '.join(limits)}" if limits else ""
    notes = [f"Goal: {goal.words.short}{most}, within {format_seconds(budget_s)}.", whole_loop(state)]
    told = state.baseline.result.notes if state.baseline else ()
    notes += [note for note in (state.facts.workload.notes if state.facts else ()) if note not in told]
    notes += [said.text for said in state.messages if said.severity == "information"]
    yield Section("Notes", (Bullets(tuple(filter(None, notes))),))
    if state.hardware:
        yield Section("Machine", (evidence.hardware_table(state.hardware, None),))
    yield from source_section(state)


def profile_sections(state: SessionState, catalog: Catalog | None) -> Iterator[Section]:
    """The parts of the profile without its operators."""
    profile = state.profile
    if profile is None:
        return
    if profile.phases:
        yield Section("Phases", (evidence.phases_table(state, profile),))
    yield from evidence.roof_section(state)
    if not profile.phases_alone:
        yield from habits_section(state, catalog)
