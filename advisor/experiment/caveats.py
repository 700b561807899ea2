"""Warnings of a session: noise, failures, budget, limits; and why candidates or accepted settings are left out."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import psutil

from advisor.experiment import policy
from advisor.experiment.control import ENDED, OTHER_VALUE, RAISE_BUDGET, REJECTED, SKIPPED
from advisor.experiment.known import Kind, Known
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.moves import why_not
from advisor.experiment.plan import Plan
from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_ratio, format_seconds, printable
from advisor.judging.judge import BASELINE, Judge
from advisor.machine.hardware import own_pids
from advisor.recipe import PARALLEL
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Facts, HostInfo, Mode, Outcome

_BUDGET_PER_START = 4  # smallest budget that is enough, as a multiple of the time before the first candidate
# Measure the cores that other programs use for this many seconds; name programs above this percentage of a core.
_LOOKS_FOR_S, _BUSY_PERCENT = 0.2, 10


def of_noise(known: Known) -> str:
    """A warning about the spread between identical processes; empty if it is small or if other programs explain it."""
    if known.judge.apart <= policy.MOST_APART or known.judge.is_busy:
        return ""
    return (
        f"this machine is noisy: identical runs differed by {format_percent(known.judge.apart)}. "
        "Close other programs and run again for narrower intervals"
    )


def of_other_programs(judge: Judge, facts: Facts) -> str:
    """A warning at the start of a session that other programs use cores or the GPU; empty if none do."""
    if not judge.is_busy:
        return ""
    taken = cores_taken(facts.hardware.host) if judge.crowded else judge.baseline.disturbed
    return (
        f"this machine is busy: {taken}. A result counts as confirmed "
        "only when its whole interval lies above 1.1x; close other programs, or pause until they have ended"
    )


def cores_taken(host: HostInfo) -> str:
    """The number of cores that other programs use, with the names of the busiest programs."""
    named = ", ".join(map(printable, busiest_programs()))
    return f"other programs use {host.foreign_cores:.1f} of {host.logical_cores} cores{f' ({named})' if named else ''}"


def busiest_programs(most: int = 3) -> list[str]:
    """The names of the other programs that use the most cores. Waits a moment to measure them."""
    own = own_pids()
    others = [process for process in psutil.process_iter(["cpu_percent"]) if process.pid not in own]
    time.sleep(_LOOKS_FOR_S)  # psutil gives the share since the previous call
    percent: Counter[str] = Counter()
    for process in others:
        with suppress(psutil.Error):  # the program has ended
            percent[process.name()] += round(process.cpu_percent())
    return [name for name, used in percent.most_common(most) if used >= _BUSY_PERCENT]


def of_the_budget(known: Known, spent_s: float, total_s: float) -> str:
    """Warn that the budget left no time to try anything, and name a sufficient one; empty if something was tried."""
    ended = {run.outcome for runs in known.judge.changed.values() for run in runs}
    # These outcomes say nothing about the settings: there was no time for the trials.
    if ended - {Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.SKIPPED} or not known.plan.candidates:
        return ""
    minutes = math.ceil(_BUDGET_PER_START * spent_s / 60)
    return f"the budget of {format_seconds(total_s)} left no time for a result; give it --budget {minutes}m or more"


def of_the_limits(known: Known) -> Iterator[str]:
    """Warnings about limits that no result keeps, with the nearest result, and about limits that have no effect."""
    judge, goal = known.judge, known.judge.goal
    results = {BASELINE: judge.yardstick.baseline.result}
    for settings in filter(known.plan.consent.permits, judge.changed):
        if (result := judge.result(settings)) is not None and result.measured:
            results[settings] = result
    peaks = {settings: peak for settings, one in results.items() if (peak := one.peak_reserved_bytes) is not None}
    least = min(peaks, key=lambda settings: peaks[settings], default=BASELINE)
    if goal.memory_limit_bytes is not None and peaks and peaks[least] > goal.memory_limit_bytes:
        what = f"with {least}" if least else "your own settings"
        yield (
            f"nothing that was measured stays within the memory limit of {format_bytes(goal.memory_limit_bytes)}: the "
            f"least was {format_bytes(peaks[least])}, {what}; raise --memory-limit, or make the batch smaller"
        )
    shortest_ms = min((one.latency.p95_ms for one in results.values() if one.latency is not None), default=None)
    if goal.latency_limit_ms is not None and known.plan.facts.workload.mode is Mode.TRAIN:
        yield "the latency limit is about calls in inference, and this loop trains: give --mode infer"
    elif goal.latency_limit_ms is not None and shortest_ms is not None and shortest_ms > goal.latency_limit_ms:
        yield (
            f"nothing that was measured keeps the latency limit of {format_ms(goal.latency_limit_ms)}: the "
            f"shortest 95th percentile of single calls was {format_ms(shortest_ms)}; raise "
            "--latency-limit, or give --batch-size 1"
        )


def of_failures(known: Known) -> Iterator[tuple[str, str]]:
    """Warnings (each with a key) about failed stacks and failed repeats of the baseline, if no table row shows them."""
    compiles, stack, noise_is_known = known.plan.catalog.compiles, known.stack, Kind.CONTROL in known.done
    for settings, runs in known.judge.runs.items():
        reason, late = runs[-1].reason.rstrip("."), runs[-1].outcome is Outcome.TIMED_OUT
        if not settings and late:
            yield f"there was too little time to measure your own settings again: {reason}; raise --budget", "baseline"
        elif not settings and not runs[-1].measured:
            advice = "make sure that the target can be built and run more than once"
            yield f"your own settings failed when they were measured again: {reason}; {advice}", "baseline"
        if len(settings) < 2 or reason in (SKIPPED, ENDED):
            continue
        if late and (not stack or (compiles(settings) and not compiles(stack))):
            yield f"there was too little time for these together: {settings}: {reason}; raise --budget", str(settings)
        elif noise_is_known and not (late or stack or runs[-1].measured):  # the rows say what a stack leaves out
            yield f"together these fail: {settings}: {reason}", str(settings)
        elif runs[-1].measured and noise_is_known:
            why = known.why_unusable(settings)
            if why and why not in (REJECTED, OTHER_VALUE):
                yield f"together these cannot be used: {settings}: {why}", str(settings)


def of_nothing_to_try(plan: Plan) -> str:
    """The reason that no candidate is left; if ``--only`` was given, it is about the recipes named there."""
    named = "; ".join(f"{recipe}: {plan.skipped[recipe]}" for recipe in plan.request.only if recipe in plan.skipped)
    if named:
        return f"no recipe that --only names can be tried ({named}): name others, or leave --only out"
    return "there is nothing to try here: every recipe is left out, each for its own reason"


def unfinished(bench: Bench) -> str:
    """A remark that code still compiles at the end of the budget, and how to continue; empty if nothing compiles."""
    if bench.has_compiled_beside() or not bench.compiling:
        return ""
    return (
        f"{bench.compiling} still compiled when the time was over, after "
        f"{bench.budget.spent_s - bench.compiling_since_s:.0f} s: "
        f"`--resume` with a longer --budget goes on, and finds what is done in the compiler's cache"
    )


# --- what is left out, and what was accepted -------------------------------------------------------------------


def left_out(known: Known, bench: Bench) -> Iterator[tuple[Candidate, str]]:
    """The candidates that have no measurement of their own, each with the reason."""
    for candidate in known.plan.candidates:
        if known.record(candidate) is None:
            yield candidate, why_not(known, candidate) or _too_late(known, candidate, bench)


def _too_late(known: Known, candidate: Candidate, bench: Bench) -> str:
    """The reason that there was no time for a candidate, and what the person can do about it."""
    if bench.ending:
        return ENDED
    if together := [s for s in known.judge.runs if s.get(candidate.key) == candidate.value]:
        why = [known.why_unusable(settings) for settings in together]
        came_to = f"it could not be used beside others: {why[-1]}" if all(why) else "it was no better beside others"
        return f"{came_to}; {RAISE_BUDGET} alone"
    needed_s = bench.expected_s(candidate.settings)
    conflict = known.plan.catalog.conflict({**known.stack, **candidate.settings})
    if conflict and bench.budget.allows(needed_s):
        return f"it cannot be added to the combination: {conflict}"
    return f"no time: it needs about {needed_s:.0f} s; {RAISE_BUDGET}"


def refusals(known: Known, bench: Bench) -> Iterator[tuple[str, str]]:
    """A warning with the reason for each accepted recipe; empty if the recipe is in the result."""
    plan, accepts = known.plan, known.plan.consent.accepts
    for recipe in filter(accepts, plan.consent.decisions):
        key = plan.catalog[recipe].key
        if bench.request.wants_several and key.startswith(PARALLEL):
            continue
        values = [candidate for candidate in plan.candidates if candidate.recipe == recipe]
        accepted = [candidate for candidate in values if accepts(recipe, candidate.value)]
        if key in known.found and accepts(recipe, known.found[key]):
            yield recipe, ""
            continue
        if not accepted:
            why = plan.skipped.get(recipe, "it has nothing to change here")
        elif (record := known.record(accepted[-1])) is None:
            why = why_not(known, accepted[-1]) or _too_late(known, accepted[-1], bench)
        else:
            found = known.left_out.get(key, f"the speed with it is {format_ratio(record.own_effect)}")
            why = known.why_unusable(Settings(record.settings)) or found
        yield recipe, f"{recipe} is accepted, but not in the combination: {why}"
