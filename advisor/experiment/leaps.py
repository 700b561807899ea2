"""The leaps: the stack that an expert would write for a workload, in the strongest form that runs here.

Without compiling first, then compiled; a form that failed is weakened (``fallbacks.py``). ``moves.py`` has the moves
around the stack that is known then.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from advisor.experiment.fallbacks import GRAPH, compiled_without_loss, may_be_compiled_away, weaker, without_half
from advisor.experiment.judging.judge import BASELINE
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.plan import COMPILE_MODE, COMPILE_SCOPE
from advisor.experiment.policy import POLICY
from advisor.experiment.ranking import CONTROL
from advisor.figures.roof import INPUT_BOUND_SHARE
from advisor.recipe import NOT_COMPILED
from advisor.recipe.settings import Settings
from advisor.records import Phase

Moves = Iterator[Move]


def leaps(known: Known) -> Moves:
    """The expert's stack: first without compiling, then compiled; where it fails, without the part that failed.

    A leap holds the settings that the search has found since: one that gained nothing is repeated once the step no
    longer waits for its data. After a decision the leap is the rest of the stack, if that was never measured.
    """
    if known.pending:
        yield Move(Kind.LEAP, known.stack, POLICY.leap_gain, f"stack: {known.stack}")
        return
    if needs_explaining(known):
        return
    usual = _wanted(known, known.usual)
    goal = _permitted(known, usual.merged(_uncompiled_with_effect(known, usual)))
    plain = _usable_form(known, goal)
    complete = set(usual) <= set(known.stack)
    if not complete and not known.judge.has_tried(plain):
        yield Move(Kind.LEAP, plain, POLICY.leap_gain, f"stack: {plain}", known.stack)
        return
    yield from _without_half(known, plain)
    if not _compiling_is_hopeless(known):
        yield from _compiled_leaps(known, plain)


def _compiled_leaps(known: Known, plain: Settings) -> Moves:
    """The uncompiled leap, compiled; and its repeated blocks alone, for when there may be no time for that."""
    compiled = _compiled_form(known, plain)
    if compiled in (plain, known.stack) or known.judge.has_tried(compiled):
        return
    gain, in_blocks = _gain_of_compiling(known, compiled), _in_blocks(known, compiled, plain)
    if in_blocks and known.judge.measured_runs(in_blocks):
        gain = min(gain, POLICY.whole_over_blocks)
    doubtful = _gains_nothing(known, plain)
    move = Move(Kind.LEAP, compiled, gain, f"stack: {compiled}", known.stack, is_doubtful=doubtful)
    if move.is_bold:
        yield from _noise_first(known)
        yield from _proof_first(known)
    yield move
    if in_blocks and not known.judge.has_tried(in_blocks):
        yield replace(move, settings=in_blocks, name=f"stack: {in_blocks}", in_place_of=move)


def _compiled_form(known: Known, plain: Settings) -> Settings:
    """The strongest compiled form of the uncompiled leap that runs here; the leap itself where nothing compiles."""
    compiles = _wanted(known, known.compiles)
    if not compiles:
        return _usable_form(known, plain)
    compiled = _fed(known, plain).merged(_replayed_in_parts(known, plain, compiles))
    whole = _captured_once_compiled(known, compiled.without(COMPILE_MODE).merged(compiles))
    return _usable_form(known, _permitted(known, whole or compiled_without_loss(compiled)))


def _fed(known: Known, plain: Settings) -> Settings:
    """The uncompiled leap, with workers where it was measured and its step mostly waits for its data."""
    if not known.judge.measured_runs(plain):
        return plain
    return _wanted(known, known.plan.fed(plain, known.judge.speed(plain)[0]))


def _replayed_in_parts(known: Known, plain: Settings, compiles: Settings) -> Settings:
    """The setting that compiles a stack with CUDA graphs of its parts, where the whole step could not be captured.

    Where that was measured and gains nothing, it is compiled without them.
    """
    gave_up = known.usual.get(GRAPH) and GRAPH not in plain and GRAPH not in known.dropped
    if not gave_up or not known.plan.has(COMPILE_MODE, "reduce-overhead"):
        return compiles
    in_parts = compiles.with_value(COMPILE_MODE, "reduce-overhead")
    whole = plain.merged(in_parts)
    gains = not known.judge.measured_runs(whole) or known.judge.gain(whole, plain).ratio > 1
    return in_parts if gains else compiles


def _captured_once_compiled(known: Known, compiled: Settings) -> Settings:
    """A compiled stack with the whole step captured, where compiling may remove what forbade it; else, or tried, empty.

    Such a stack is what an expert writes. Where it fails too, the form that was captured uncompiled is compiled.
    """
    if GRAPH in known.dropped or known.usual.get(GRAPH) is not True or compiled.get(GRAPH) is True:
        return BASELINE
    judge, whole = known.judge, compiled.with_value(GRAPH, True)
    uncompiled = [s for s in judge.runs if s.get(GRAPH) is True and not known.plan.catalog.compiles(s)]
    is_captured = any(judge.measured_runs(s) for s in uncompiled)
    if is_captured or not any(may_be_compiled_away(judge.result(s)) for s in uncompiled):
        return BASELINE
    return BASELINE if judge.has_tried(whole) and not known.usable(whole) else whole


def _in_blocks(known: Known, compiled: Settings, plain: Settings) -> Settings:
    """A compiled stack with its repeated blocks compiled by themselves, which takes less time; empty without blocks.

    What kept the uncompiled leap from being captured may be outside the blocks, where no compiler removes it.
    """
    settings = compiled.without(COMPILE_MODE).with_value(COMPILE_SCOPE, "regional")
    if GRAPH not in plain:
        settings = settings.without(GRAPH)
    possible = known.plan.has(COMPILE_SCOPE, "regional") and not known.plan.catalog.conflict(settings)
    return settings if possible else BASELINE


def _noise_first(known: Known) -> Moves:
    """A second process of the baseline before a compilation that may take all the time: no interval holds without."""
    if Kind.CONTROL not in known.done and len(known.judge.baseline_runs) == 1:
        yield Move(Kind.CONTROL, BASELINE, POLICY.leap_gain, f"{CONTROL}=true")


def _proof_first(known: Known) -> Moves:
    """The turns of the best stack before a compilation that may not end in time: what is found then is confirmed."""
    stack = known.to_confirm
    if stack and known.usable(stack) and not known.judge.took_turns(stack):
        yield Move(Kind.TURNS, stack, POLICY.leap_gain, "stack, confirmed")


def compiled_next(known: Known, plain: Settings) -> Settings:
    """The compiled settings that follow an uncompiled leap, if that runs; empty where nothing is compiled."""
    move = next((move for move in _compiled_leaps(known, plain) if move.kind is Kind.LEAP and move.is_bold), None)
    return move.settings if move else BASELINE


def _uncompiled_with_effect(known: Known, usual: Settings) -> Settings:
    """The stack's uncompiled settings that still have an effect beside the usual ones."""
    members = [c for c in known.plan.candidates if known.uncompiled.get(c.key) == c.value]
    idle = {c.key for c in members if c.key not in usual and not known.plan.applies(c, usual)}
    return known.uncompiled.filtered(lambda key: key not in idle)


def _without_half(known: Known, plain: Settings) -> Moves:
    """The leap without half precision, where the whole of it gains nothing as long as it is not compiled.

    A step that waits for the host gets slower by the casts of autocast, and the other settings may still gain.
    """
    if known.stack or not _gains_nothing(known, plain):
        return
    lighter = next(without_half(known, plain), BASELINE)
    if lighter and not known.judge.has_tried(lighter) and not known.plan.catalog.conflict(lighter):
        yield Move(Kind.LEAP, lighter, POLICY.leap_gain, f"stack: {lighter}")


def _gain_of_compiling(known: Known, settings: Settings) -> float:
    """The expected gain of compiling as these settings say; any of several that compile would do it by itself."""
    plain = settings.filtered(lambda key: key not in NOT_COMPILED)
    gain = 1.0
    for candidate in known.plan.candidates:
        if settings.get(candidate.key) == candidate.value and known.plan.recipe(candidate).expensive:
            gain = max(gain, known.plan.expected_gain(candidate, plain.without(candidate.key), known.step_ms))
    waiting = share_of_waiting(known, plain) or 0.0
    if waiting > INPUT_BOUND_SHARE:  # half of it, since data that loads beside a shorter step is waited for longer
        gain = math.sqrt(1 / (waiting + (1 - waiting) / gain))
    return max(gain, POLICY.drop_gain)


def share_of_waiting(known: Known, settings: Settings) -> float | None:
    """The share of the step of measured settings in which it waits for its data; None where that was not timed."""
    runs = known.judge.runs.get(settings, ())
    phases = next((run.phases for run in runs if run.phases), None)
    return phases.get(Phase.DATA_WAIT, 0.0) / max(sum(phases.values()), 1e-9) if phases else None


def _gains_nothing(known: Known, plain: Settings) -> bool:
    """Whether a leap that compiles nothing ran, and was no faster than the baseline."""
    return bool(plain and known.judge.measured_runs(plain)) and known.judge.gain(plain, BASELINE).ratio <= 1


def _wanted(known: Known, settings: Settings) -> Settings:
    """The usual settings that were not dropped."""
    return settings.filtered(lambda key: key not in known.dropped)


def _compiling_is_hopeless(known: Known) -> bool:
    """Whether compiled stacks have failed so often that the next one will."""
    catalog = known.plan.catalog
    failed = [s for s in known.judge.runs if catalog.compiles(s) and not known.judge.measured_runs(s)]
    return len(failed) >= POLICY.most_failures


def needs_explaining(known: Known) -> bool:
    """Whether something ran but differs too much, and the instruments may still show that rounding or chance did it."""
    return any(_is_unexplained(known, settings) for settings in known.judge.runs)


def _is_unexplained(known: Known, settings: Settings) -> bool:
    if len(settings) < 2:
        return False
    result = known.judge.result(settings)
    if result is None or not result.measured:
        return False
    if known.plan.consent.permits(settings, known.judge.numerics(settings)):
        return False
    return not {Kind.CONTROL, Kind.REFERENCE} <= known.done or _may_be_chance(known, settings)


def _may_be_chance(known: Known, settings: Settings) -> bool:
    """Whether steps that draw random numbers were seen too seldom to tell another draw from a fault."""
    judge = known.judge
    again = len(judge.runs.get(BASELINE, ()))
    draws = {run.losses or run.outputs for run in (*judge.baseline_runs, *judge.controls) if run.measured}
    if not judge.spread.random or len(draws) >= POLICY.enough_draws or again >= POLICY.most_runs:
        return False
    return known.plan.consent.permits(settings, judge.numerics(settings, unseen_draws=True))


def _usable_form(known: Known, goal: Settings) -> Settings:
    """The strongest form of a goal that is untried or usable: each form that failed is weakened."""
    settings = _permitted(known, goal)
    while settings and known.judge.has_tried(settings) and not known.usable(settings):
        settings = weaker(known, settings)
    return settings


def _permitted(known: Known, settings: Settings) -> Settings:
    """The settings that the person permits; none if these conflict with each other."""
    catalog, consent = known.plan.catalog, known.plan.consent
    for key in settings:
        if not consent.permits({key: settings[key]}):
            settings = settings.without(key)
    return settings if not catalog.conflict(settings) else BASELINE
