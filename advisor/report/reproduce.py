"""The report's last sections: the method of measuring, the command to repeat it, and the code of the settings."""

import re
import shlex
from collections.abc import Iterator

from advisor.experiment.objective import DEFAULT_KEEP_SPEED
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
    format_ms,
    format_percent,
    format_seconds,
    format_setting,
)
from advisor.recipe.catalog import Catalog
from advisor.records import Numerics, Objective, Value, text_of
from advisor.report.conclusions import tried
from advisor.report.document import Block, Listing, Paragraph, Section


def code_section(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    """The code of each setting that won, in the order in which they are applied."""
    won = state.stack.settings if state.stack else {}
    # A damaged record, or another version's, may name settings and values that no recipe has.
    settings = {one.key: won[one.key] for one in catalog if one.key in won and one.accepts(won[one.key])}
    if not settings:
        return
    blocks: list[Block] = []
    for recipe, value in catalog.in_order(settings):
        blocks.append(Paragraph(f"{recipe.title} ({format_setting(recipe.key, value)})"))
        blocks.append(Listing(recipe.code(value), "python"))
    yield Section("The code of these settings", tuple(blocks), brief=())


def reproduce_section(state: SessionState, request: Request) -> Section:
    """The session's name and date, and the command that measures the same."""
    blocks: list[Block] = []
    if state.session_id:
        blocks.append(Paragraph(f"Session {state.session_id}{_begun(state.session_id)}."))
    blocks += [
        Paragraph(f"In {request.target.directory}, with the versions above:"),
        Listing(command_of(request), "bash"),
    ]
    return Section("To reproduce it", tuple(blocks), brief=())


def command_of(request: Request) -> str:
    """The command line of the same session, without probable secrets in the target's arguments."""
    target = request.target
    words = [
        "--headless",
        f"--budget={request.budget_s:g}s",
        *_given("objective", request.objective, Objective.THROUGHPUT),
        *_given("keep-speed", request.keep_speed, DEFAULT_KEEP_SPEED),
        *_given("allow", request.allow, Numerics.CLOSE),
        *_given("memory-limit", request.memory_limit_bytes, None, unit="B"),
        *_given("latency-limit", request.latency_limit_ms, None, unit="ms"),
        *_given("mode", target.mode, None),
        *_given("device", target.device, "auto"),
        *_given("batch-size", target.batch_size, None),
        *_given("input", "x".join(map(str, target.input_shape or ())), ""),
        *_given("only", ",".join(request.only), ""),
        *_given("skip", ",".join(request.skip), ""),
        *_given("accept", ",".join(_accepted(name, value) for name, value in request.accept), ""),
        *_given("config", request.config_path, None),
        *(f"--recipes={folder}" for folder in request.recipe_folders),
        *(f"--script={script}" for script in request.scripts),
        *(f"--map={key}={path}" for key, path in request.key_map.items()),
    ]
    arguments = target.command.removeprefix(target.target)
    return f"perf-advisor {shlex.quote(target.target)} {shlex.join(words)}{arguments}"


def _accepted(recipe: str, value: Value | None) -> str:
    return recipe if value is None else f"{recipe}={text_of(value)}"


def _given(option: str, value: object, usual: object, *, unit: str = "") -> list[str]:
    """An option with its value, where that is not the usual one."""
    return [] if value == usual else [f"--{option}={value}{unit}"]


def _begun(session_id: str) -> str:
    """A phrase for the start of a session, read from its id; empty for an id without a time."""
    match = re.match(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)", session_id)
    return ", begun on {}-{}-{} at {}:{}".format(*match.groups()) if match else ""


METHOD = (
    "Every trial ran in a process of its own, with the same seed and the same batches. Steps run in blocks without "
    "synchronising in between; a step's time is wall time per step. Warm-up goes on until the steps are steady and is "
    "reported apart, with the number of steps after which a slower start pays off.",
    "A speed-up is the ratio of samples per second to the baseline's, with its interval: of 95 % of those measured in "
    "turn, of 99 % of the others. It holds how blocks of a process scatter, and how far processes of the same settings "
    "lie apart. Faster: the whole interval lies above 1.01; slower: below 1/1.01; same: within 3 % of 1; else unclear.",
    "There is one baseline: a step time with a setting is the one without it, divided by the speed-up. The settings "
    "together are measured in turn with the baseline (A B B A), so that drift cancels.",
    "Memory is the peak that PyTorch's allocator reserved on the GPU; on a CPU, the peak resident set of the process. "
    "Numerics compare the first losses, outputs and weights with the baseline's under the same seed and batches; close "
    "means within rounding, which a run in float64 shows where there is time and memory for it.",
    "Energy is that of the whole GPU while blocks were timed, its idle draw included. The phases come from a separate "
    "pass with waits between them, so that their sum can exceed the step. The machine's peaks are what it reached "
    "in products of large matrices and in large copies.",
)


def method(state: SessionState, request: Request) -> Iterator[str]:
    """The method, and what of it was particular to this session; a sentence or more for each point."""
    yield from METHOD
    yield from _ranking_rule(state)
    if any(record.candidate.already_on for record in tried(state)):
        yield (
            "A setting that was on already was switched off for its trial; its worth is how much faster the step is "
            "with it."
        )
    if state.finished:
        yield (
            f"The session took {format_seconds(state.finished.session_s)} of a budget of "
            f"{format_seconds(request.budget_s)}."
        )


def _ranking_rule(state: SessionState) -> Iterator[str]:
    by = state.yardstick
    if rule := state.goal.words.rule.format(share=format_percent(state.goal.keep_speed)):
        floor = by.least_difference(state.goal.objective) if by and not state.goal.by_time else 0.0
        yield f"{rule} A difference counts above {format_percent(floor, digits=1)}." if floor else rule
    if state.goal.memory_limit_bytes is not None:
        limit = format_bytes(state.goal.memory_limit_bytes)
        yield f"Settings above the memory limit of {limit} are neither recommended nor in the combination."
    if state.goal.latency_limit_ms is not None:
        limit = format_ms(state.goal.latency_limit_ms)
        yield (
            f"A size whose single calls, each waited for, exceed the latency limit of {limit} in their 95th percentile "
            "is neither recommended nor in the combination."
        )
