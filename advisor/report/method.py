"""The method of a session's measurements, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_noise, format_percent, format_seconds
from advisor.records import Objective
from advisor.report.conclusions import tried


def method(state: SessionState, request: Request) -> Iterator[str]:
    """The method, as far as it matters for this session; a sentence for each point."""
    on_cuda = state.facts is not None and state.facts.on_cuda
    noise = format_noise(state.baseline.noise_floor if state.baseline else None)
    yield "Every trial ran in a process of its own, with the same seed and the same batches."
    yield (
        "A step's time is wall time per step over blocks of back-to-back steps, after a warm-up until the steps were "
        "steady. The warm-up is reported apart; the steps after which a slower start has paid back follow from it."
    )
    yield (
        "A speed-up is the ratio of samples per second to the baseline's, with the 95 % bootstrap interval of the "
        f"ratio of medians. It counts only when the whole interval clears the noise floor, here {noise}: what "
        "identical runs differ by."
    )
    yield from _ranking_rule(state)
    yield from _repeats(state)
    yield (
        "Memory is the peak that PyTorch's allocator reserved on the GPU."
        if on_cuda
        else "Memory is the peak resident set of the trial's process."
    )
    yield "In the tables of recommendations and trials, memory and energy a sample are changes against the baseline."
    yield "Numerics compare the first losses, outputs and weights with the baseline's; close is what rounding explains."
    if state.facts and state.facts.profile:
        yield "The phases come from a separate pass with waits between them; their sum can exceed the step."
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
        yield f"What took more than the memory limit of {limit} is neither recommended nor in the combination."
    if state.goal.latency_limit_ms is not None:
        limit = format_ms(state.goal.latency_limit_ms)
        yield (
            f"A size whose single calls, each waited for, exceed the latency limit of {limit} in their 95th percentile "
            "is neither recommended nor in the combination."
        )


def _repeats(state: SessionState) -> Iterator[str]:
    if state.stack and state.stack.comparison and state.stack.comparison.paired:
        yield "The settings together were measured alternately with the baseline (A B B A), so that drift cancels."
    if any(record.confirmed and record.alone for record in state.trials.values()):
        yield (
            "Rows marked in turn were close to the noise and were measured again, alternately with the baseline. Their "
            "first trial is left out, since it was selected by its result."
        )
    if any(record.candidate.already_on for record in tried(state)):
        yield (
            "A setting that was on already was switched off for its trial; what it is worth is how much faster the "
            "step is with it."
        )
