"""The parts of a report from which a session can be run again, and the code of the settings that won."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from advisor.experiment.objective import DEFAULT_KEEP_SPEED
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_setting
from advisor.recipe.catalog import Catalog
from advisor.records import Numerics, Objective, Value, text_of
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
    """The command line that asks for the same session, without what looks like a secret in the target's arguments."""
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
