"""The report's last sections: the method of measuring, and the command to repeat it."""

import shlex
from collections.abc import Iterator

from advisor.experiment.request import DEFAULT_EVAL_STEPS, Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_seconds
from advisor.judging.objective import DEFAULT_KEEP_SPEED
from advisor.records import Numerics, Objective, text_of
from advisor.report.conclusions import candidates_tried
from advisor.report.document import Listing, Paragraph, Section


def reproduce_section(state: SessionState, request: Request) -> Section:
    """The session's name, which begins with its date, and the command that measures the same."""
    named = [Paragraph(f"Session {state.session_id}.")] if state.session_id else []
    where = Paragraph(f"In {request.target.directory}, with the versions above:")
    return Section("To reproduce it", (*named, where, Listing(command_of(request), "bash")))


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
        "eval": request.evaluate,
        "min-score": "" if request.min_score is None else str(request.min_score),
        "max-drop": request.max_drop,
        "steps": "" if request.eval_steps == DEFAULT_EVAL_STEPS else request.eval_steps,
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
    if rule := goal.words.rule.format(share=format_percent(goal.keep_speed)):
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
