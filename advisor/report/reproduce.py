"""The report's last sections: the method of measuring, and the command to repeat it."""

import shlex
from collections.abc import Iterator

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_seconds
from advisor.report.document import Block, Listing, Paragraph, Section
from advisor.report.figures import candidates_tried


def reproduce_section(state: SessionState, request: Request) -> Section:
    """The session's name, which begins with its date, and the command that began it, if one is recorded."""
    blocks: list[Block] = [Paragraph(f"Session {state.session_id}.")] if state.session_id else []
    if request.command:
        where = f"In {request.target.directory}, with the versions above:"
        blocks += [Paragraph(where), Listing(shlex.join(("perf-advisor", *request.command)), "bash")]
    return Section("To reproduce it", tuple(blocks))


METHOD = (
    "Every trial runs in its own process, with the same seed and the same batches. Blocks of steps are timed without "
    "synchronising in between; a step's time is wall time. Warm-up goes on until the steps are steady. It is reported "
    "apart, with the number of steps after which a slower start pays off.",
    "A speed-up is samples per second over the baseline's. Its interval has 95 % where it was measured in turn with "
    "the baseline, 99 % elsewhere. The interval covers the spread of blocks in a process and of processes with the "
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
    """The method, then what is particular to this session; one or more sentences for each point."""
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
        yield (
            f"Batch sizes whose single calls take longer than the latency limit of {limit} (95th percentile) are "
            "neither recommended nor in the combination."
        )
    if any(record.candidate.already_on for record in candidates_tried(state)):
        yield "A setting that is already on was switched off for its trial; its worth is the gain of having it on."
    if state.finished:
        took, budget = format_seconds(state.finished.session_s), format_seconds(request.budget_s)
        yield f"The session took {took} of a budget of {budget}."
