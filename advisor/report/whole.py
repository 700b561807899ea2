"""The whole report of a session as a document: the decision first, the evidence later, the method last."""

import shlex
from collections.abc import Iterator

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_seconds
from advisor.recipe.catalog import Catalog
from advisor.report import evidence
from advisor.report.document import Block, Document, Listing, Section, section, shown
from advisor.report.evidence import habits_section, source_section
from advisor.report.figures import candidates_tried
from advisor.report.pictures import pictures
from advisor.report.settings import settings_sections, stack_blocks, untried_table
from advisor.report.several_gpus import several_gpus_section
from advisor.report.verdict import verdict, whole_loop
from advisor.version import __version__


def document_of(
    state: SessionState, request: Request, catalog: Catalog, change: str = "", *, drawn: bool = False
) -> Document:
    """The report of a session, with the ``change`` of the user's own file as a diff. The session may still run.

    ``drawn`` adds the charts, for a renderer that can draw them.
    """
    table = evidence.hardware_table(state.hardware, state.facts) if state.hardware else None
    found = (
        section("The change in your file", Listing(change, "diff")),
        *sections(state, catalog, pictures(state) if drawn else ()),
        section("Hardware and versions", table),
        reproduce_section(state, request) if table else None,
        section("How the numbers were made", tuple(method(state, request)) if state.baseline else ()),
    )
    title, made_by = f"perf-advisor: {request.target.command}", f"Made by perf-advisor {__version__}."
    return Document(title, verdict(state), shown(found), made_by)


def summary_sections(state: SessionState, catalog: Catalog) -> tuple[Section, ...]:
    """The result, then the sections of the report. The summary at the end of a session shows some of them."""
    return shown([section("Result", verdict(state) if state.baseline else ""), *sections(state, catalog)])


def sections(state: SessionState, catalog: Catalog, charts: tuple[Block, ...] = ()) -> Iterator[Section | None]:
    """The sections of the report, the decision first. A summary leaves out some of them."""
    yield evidence.caveats_section(state)
    yield section("The settings together", *stack_blocks(state))
    yield from settings_sections(state, catalog)
    yield several_gpus_section(state.scaling)
    yield section("Pictures", *charts, whole=True)
    yield evidence.sweep_section(state, catalog)
    yield source_section(state)
    if state.baseline:
        yield evidence.baseline_section(state, catalog)
    if state.profile:
        yield evidence.time_section(state, state.profile)
        yield evidence.roof_section(state, state.profile)
    yield habits_section(state, catalog)
    yield section("Not tried", untried_table(state, catalog), folded=True)


# --- the last sections --------------------------------------------------------------------------------------------


def reproduce_section(state: SessionState, request: Request) -> Section:
    """The session's name, which begins with its date, and the command that started it, if it is recorded."""
    command = shlex.join(("perf-advisor", *request.command)) if request.command else ""
    where = f"In {request.target.directory}, with the versions above:" if command else ""
    name = f"Session {state.session_id}." if state.session_id else ""
    return section("To reproduce it", name, where, Listing(command, "bash"))


METHOD = (
    "Every trial runs in its own process, with the same seed and the same batches. Blocks of steps are timed without "
    "synchronising in between; a step's time is wall time. Warm-up goes on until the steps are steady. It is reported "
    "separately, with the number of steps after which a slower start pays off.",
    "A speed-up is samples per second over the baseline's. Its interval is 95 % if it was measured in turn with the "
    "baseline, else 99 %. The interval covers the spread of blocks in a process and of processes with the "
    "same settings. Faster: the whole interval is above 1.01. Slower: below 1/1.01. Same: within 3 % of 1. Else "
    "unclear.",
    "There is one baseline: the step time with a setting is the step time without it, divided by the speed-up. The "
    "combination is measured in turn with the baseline (A B B A), so that drift cancels.",
    "Memory is the peak that PyTorch's allocator reserved on the GPU; on a CPU, the peak resident set of the process. "
    "Numerics: the first losses, outputs and weights are compared with the baseline's, with the same seed and batches. "
    "Close means that only rounding differs; a float64 run shows how much that may be.",
    "Energy is that of the whole GPU, idle draw included. The phases come from a separate pass that waits after each "
    "phase, so their sum can exceed the step. The machine's peak rates were measured with large matrix products and "
    "large copies.",
)


def method(state: SessionState, request: Request) -> Iterator[str]:
    """The method, then the points that apply only to this session."""
    yield from METHOD
    goal, by = state.goal, state.yardstick
    if rule := goal.words.rule:
        floor = by.least_difference(goal.objective) if by and not goal.by_time else 0.0
        yield f"{rule} A difference counts above {format_percent(floor, digits=1)}." if floor else rule
    if goal.memory_limit_bytes is not None:
        limit = format_bytes(goal.memory_limit_bytes)
        yield f"Settings above the memory limit of {limit} are neither recommended nor in the combination."
    if goal.latency_limit_ms is not None:
        limit = format_ms(goal.latency_limit_ms)
        yield f"Batch sizes with calls above {limit} (95th percentile) are neither recommended nor in the combination."
    if any(record.candidate.already_on for record in candidates_tried(state)):
        yield "A setting that is already on was switched off for its trial; its worth is the gain of having it on."
    if state.finished:
        took, budget = format_seconds(state.finished.session_s), format_seconds(request.budget_s)
        yield f"The session took {took} of a budget of {budget}."


# --- parts that the app shows -------------------------------------------------------------------------------------


def session_card(state: SessionState, catalog: Catalog | None, budget_s: float) -> tuple[Section, ...]:
    """The card of the person's own settings: caveats, baseline, notes, machine and the findings in the source."""
    goal = state.goal
    limits = [format_bytes(goal.memory_limit_bytes)] if goal.memory_limit_bytes else []
    limits += [f"{format_ms(goal.latency_limit_ms)} a call"] if goal.latency_limit_ms else []
    most = f", at most {' and '.join(limits)}" if limits else ""
    notes = [f"Goal: {goal.words.short}{most}, within {format_seconds(budget_s)}.", whole_loop(state)]
    told = state.baseline.result.notes if state.baseline else ()
    notes += [note for note in (state.facts.workload.notes if state.facts else ()) if note not in told]
    notes += [said.text for said in state.messages if said.severity == "information"]
    machine = evidence.hardware_table(state.hardware, None) if state.hardware else None
    more = section("Notes", tuple(filter(None, notes))), section("Machine", machine), source_section(state)
    return shown([evidence.caveats_section(state), evidence.baseline_section(state, catalog), *more])


def profile_sections(state: SessionState, catalog: Catalog | None, unknown: str = "") -> tuple[Section, ...]:
    """The profile without its operators; ``unknown`` says why only the phases are known."""
    profile = state.profile
    if profile is None:
        return ()
    phases = section("Phases", *evidence.phases_blocks(state, profile))
    limit, habits = section("What limits the step", unknown), habits_section(state, catalog)
    return shown([phases, evidence.roof_section(state, profile), limit if profile.phases_alone else habits])
