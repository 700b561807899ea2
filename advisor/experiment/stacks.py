"""Whole stacks: the settings that an expert would write for a workload, in the strongest form that runs here.

Without compiling first, then compiled; a form that failed gives way to a simpler one (``fallbacks.py``).
``moves.py`` has the moves around the stack that is known then.
"""

from collections.abc import Iterator

from advisor.experiment.fallbacks import GRAPH, compiled_without_loss, fallback
from advisor.experiment.judging.judge import BASELINE
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.plan import COMPILE_MODE
from advisor.experiment.policy import POLICY
from advisor.recipe import NOT_COMPILED
from advisor.recipe.settings import Settings
from advisor.records import Cause

Moves = Iterator[Move]


def whole_stacks(known: Known) -> Moves:
    """The expert's stack: first without compiling, then compiled; where it fails, without the part that failed.

    It holds the settings that the search has found since: one that gained nothing is repeated once the step no longer
    waits for its data. After a decision it is the rest of the stack, if that was never measured.
    """
    if known.pending:
        yield Move(Kind.STACK, known.stack, POLICY.stack_gain, f"stack: {known.stack}")
        return
    if needs_explaining(known):
        return
    usual = _wanted(known, known.usual)
    plain = _usable_form(known, _usable_form(known, usual).merged(known.uncompiled))
    if not set(usual) <= set(known.stack) and not known.judge.has_tried(plain):
        yield Move(Kind.STACK, plain, POLICY.stack_gain, f"stack: {plain}", known.stack)
    else:
        yield from _compiled_stack(known, plain)


def _compiled_stack(known: Known, plain: Settings) -> Moves:
    """The uncompiled stack, compiled, in the strongest form that runs here."""
    compiles = _wanted(known, known.compiles)
    compiled = _captured(known, plain, plain.merged(compiles)) if compiles else plain
    compiled = _usable_form(known, compiled)
    if compiled not in (plain, known.stack) and not known.judge.has_tried(compiled):
        yield Move(Kind.STACK, compiled, _gain_of_compiling(known, compiled), f"stack: {compiled}", known.stack)


def _captured(known: Known, plain: Settings, compiled: Settings) -> Settings:
    """A compiled stack whose step is captured, also where that failed as long as it was not compiled.

    As a whole where compiling may remove what forbade it, which is what an expert writes; else in parts, by the
    compiler's own CUDA graphs.
    """
    if known.usual.get(GRAPH) is not True or GRAPH in known.dropped or compiled.get(GRAPH) is True:
        return compiled
    whole, compiles = compiled.with_value(GRAPH, True), known.plan.catalog.compiles
    # The compiler keeps constants on the GPU, and derives a backward pass of its own, which does not wait for the host.
    obstacles = {Cause.CAPTURE_OF_BACKWARD, Cause.HOST_COPY}
    failed = [runs[-1].causes for s, runs in known.judge.runs.items() if s.get(GRAPH) is True and not compiles(s)]
    if not all(map(obstacles.isdisjoint, failed)) and known.may_be_usable(whole):
        return whole
    if GRAPH in plain or COMPILE_MODE in known.dropped or not known.plan.has(COMPILE_MODE, "reduce-overhead"):
        return compiled_without_loss(compiled)
    return compiled.with_value(COMPILE_MODE, "reduce-overhead")


def compiled_next(known: Known, plain: Settings) -> Settings:
    """The compiled settings that follow an uncompiled stack, if that runs; empty where nothing is compiled."""
    return next((move.settings for move in _compiled_stack(known, plain) if move.has_priority), BASELINE)


def _gain_of_compiling(known: Known, settings: Settings) -> float:
    """The expected gain of compiling as these settings say; any of several that compile would do it by itself."""
    plain, plan = settings.filtered(lambda key: key not in NOT_COMPILED), known.plan
    compiling = [c for c in plan.candidates if settings.get(c.key) == c.value and plan.recipe(c).expensive]
    gains = (plan.expected_gain(c, plain.without(c.key), known.step_ms) for c in compiling)
    return max([POLICY.proof, *gains])


def _wanted(known: Known, settings: Settings) -> Settings:
    """The usual settings that were not dropped."""
    return settings.filtered(lambda key: key not in known.dropped)


def needs_explaining(known: Known) -> bool:
    """Whether something ran but differs too much, and the instruments may still show that rounding or chance did it."""
    if {Kind.CONTROL, Kind.REFERENCE} <= known.done and not _draws_are_few(known):
        return False
    judge, permits = known.judge, known.plan.consent.permits
    stacks = (settings for settings in judge.runs if len(settings) > 1 and judge.measured_runs(settings))
    return not all(permits(settings, judge.numerics(settings)) for settings in stacks)


def _draws_are_few(known: Known) -> bool:
    """Whether steps that draw random numbers were seen too seldom to tell another draw from a fault."""
    judge = known.judge
    draws = {run.losses or run.outputs for run in (*judge.baseline_runs, *judge.controls) if run.measured}
    again = len(judge.runs.get(BASELINE, ()))
    return judge.spread.random and len(draws) < POLICY.most_runs and again < POLICY.most_runs


def _usable_form(known: Known, goal: Settings) -> Settings:
    """The strongest form of a goal that is untried or usable: each form that failed gives way to a simpler one."""
    consent = known.plan.consent
    settings = goal.filtered(lambda key: consent.permits({key: goal[key]}))
    if known.plan.catalog.conflict(settings):
        return BASELINE
    while settings and not known.may_be_usable(settings):
        settings = fallback(known, settings)
    return settings
