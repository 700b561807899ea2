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
)
from advisor.records import Numerics, Objective, text_of
from advisor.report.conclusions import candidates_tried
from advisor.report.document import Block, Listing, Paragraph, Section


def reproduce_section(state: SessionState, request: Request) -> Section:
    """The session's name and date, and the command that measures the same."""
    blocks: list[Block] = []
    if state.session_id:
        blocks.append(Paragraph(f"Session {state.session_id}{_begun(state.session_id)}."))
    blocks += [
        Paragraph(f"In {request.target.directory}, with the versions above:"),
        Listing(command_of(request), "bash"),
    ]
    return Section("To reproduce it", tuple(blocks))


def command_of(request: Request) -> str:
    """The command line of the same session, without probable secrets in the target's arguments."""
    target = request.target
    arguments = target.command.removeprefix(target.target)
    return f"perf-advisor {shlex.quote(target.target)} --headless {shlex.join(options_of(request))}{arguments}"


def options_of(request: Request) -> list[str]:
    """The options that ask for the same session, each as ``--option=value``; those at their default are left out."""
    target = request.target
    accepted = (name if value is None else f"{name}={text_of(value)}" for name, value in request.accept)
    given = {
        "objective": "" if request.objective is Objective.THROUGHPUT else request.objective,
        "keep-speed": "" if request.keep_speed == DEFAULT_KEEP_SPEED else request.keep_speed,
        "allow": "" if request.allow is Numerics.CLOSE else request.allow,
        "memory-limit": request.memory_limit_bytes and f"{request.memory_limit_bytes}B",
        "latency-limit": request.latency_limit_ms and f"{request.latency_limit_ms}ms",
        "mode": target.mode,
        "device": "" if target.device == "auto" else target.device,
        "gpus": "" if request.gpus == 1 else request.gpus or "all",
        "batch-size": target.batch_size,
        "input": "x".join(map(str, target.input_shape or ())),
        "only": ",".join(request.only),
        "skip": ",".join(request.skip),
        "accept": ",".join(accepted),
        "config": request.config_path,
    }
    return [
        f"--budget={request.budget_s:g}s",
        *(f"--{option}={value}" for option, value in given.items() if value),
        *(f"--recipes={folder}" for folder in request.recipe_folders),
        *(f"--script={script}" for script in request.scripts),
        *(f"--map={key}={path}" for key, path in request.key_map.items()),
    ]


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
    if any(record.candidate.already_on for record in candidates_tried(state)):
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
        floors = {Objective.MEMORY: by.saving_floor, Objective.ENERGY: by.energy_floor} if by else {}
        floor = floors.get(state.goal.objective)
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
