"""The moves of the search: what could be measured next, and what each is expected to gain. Functions of what is known.

Each function yields the moves of one kind. ``search.py`` takes the one that is worth most for its cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from advisor.experiment.judging.judge import BASELINE, Judge
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.ladder import end_of_ladder, goes_on
from advisor.experiment.plan import COMPILE_MODE, COMPILE_SCOPE
from advisor.experiment.policy import POLICY
from advisor.experiment.ranking import CONTROL
from advisor.experiment.weaken import GRAPH, compiled_without_loss, weaker, without_half
from advisor.recipe import NOT_COMPILED
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Outcome, TrialResult, Verdict

Moves = Iterator[Move]


@functools.lru_cache(maxsize=2)  # what is left to do is told of one state, and the next move taken from it
def moves(known: Known) -> tuple[Move, ...]:
    """All that could be measured next. Of moves with equal worth the first is taken."""
    kinds = (leaps, instruments, drops, swaps, adds, singles, repeats, turns)
    return tuple(move for kind in kinds for move in kind(known) if not _compiles_too_long(known, move.settings))


def _compiles_too_long(known: Known, settings: Settings) -> bool:
    """Whether as much was compiled before, and was not done when its time was over."""
    cost = known.plan.catalog.cost(settings)
    if not cost:
        return False
    tried = [(known.plan.catalog.cost(s), known.judge.result(s)) for s in known.judge.runs]
    if any(limit and result is not None and result.measured for limit, result in tried):
        return False
    late = (limit for limit, result in tried if result is not None and result.outcome is Outcome.TIMED_OUT)
    return any(0 < limit <= cost for limit in late)


def leaps(known: Known) -> Moves:
    """The expert's stack: first without compiling, then compiled; where it fails, without the part that failed.

    A leap holds the settings that the search has found since: one that gained nothing is repeated once the step no
    longer waits for its data. After a decision the leap is the rest of the stack, if that was never measured.
    """
    if known.pending:
        yield Move(Kind.LEAP, known.stack, POLICY.leap_gain, f"stack: {known.stack}")
        return
    if any(_needs_explaining(known, settings) for settings in known.judge.runs):
        return
    usual, compiles = _wanted(known, known.usual), _wanted(known, known.compiles)
    goal = _permitted(known, usual.merged(_uncompiled_with_effect(known, usual)))
    plain = _usable_form(known, goal)
    complete = set(usual) <= set(known.stack)
    if not complete and not known.judge.has_tried(plain):
        yield Move(Kind.LEAP, plain, POLICY.leap_gain, f"stack: {plain}", known.stack)
        return
    yield from _without_half(known, plain)
    if compiles:
        goal = _permitted(known, compiled_without_loss(plain.merged(_replayed_in_parts(known, plain, compiles))))
    else:
        goal = plain
    if _compiling_is_hopeless(known):
        return
    compiled = _usable_form(known, goal)
    if compiled not in (plain, known.stack) and not known.judge.has_tried(compiled):
        gain, in_blocks = _gain_of_compiling(known, compiled), _in_blocks(known, compiled)
        if in_blocks and known.judge.measured_runs(in_blocks):
            gain = min(gain, POLICY.whole_over_blocks)
        doubtful = _gains_nothing(known, plain)
        move = Move(Kind.LEAP, compiled, gain, f"stack: {compiled}", known.stack, is_doubtful=doubtful)
        if move.is_bold:
            yield from _noise_first(known)
        yield move
        if in_blocks and not known.judge.has_tried(in_blocks):
            yield replace(move, settings=in_blocks, name=f"stack: {in_blocks}", in_place_of=move)


def _replayed_in_parts(known: Known, plain: Settings, compiles: Settings) -> Settings:
    """The setting that compiles a stack with CUDA graphs of its parts, where the whole step could not be captured.

    Where that was measured and gains nothing, it is compiled without them.
    """
    proposed = {(candidate.key, candidate.value) for candidate in known.plan.candidates}
    gave_up = known.usual.get(GRAPH) and GRAPH not in plain and GRAPH not in known.dropped
    if not gave_up or (COMPILE_MODE, "reduce-overhead") not in proposed:
        return compiles
    in_parts = compiles.with_value(COMPILE_MODE, "reduce-overhead")
    whole = plain.merged(in_parts)
    gains = not known.judge.measured_runs(whole) or known.judge.gain(whole, plain).ratio > 1
    return in_parts if gains else compiles


def _in_blocks(known: Known, compiled: Settings) -> Settings:
    """A compiled stack with its repeated blocks compiled by themselves, which takes less time; empty without blocks."""
    proposed = {(candidate.key, candidate.value) for candidate in known.plan.candidates}
    settings = compiled.without(COMPILE_MODE).with_value(COMPILE_SCOPE, "regional")
    possible = (COMPILE_SCOPE, "regional") in proposed and not known.plan.catalog.conflict(settings)
    return settings if possible else BASELINE


def _noise_first(known: Known) -> Moves:
    """A second process of the baseline before a compilation that may take all the time: no interval holds without."""
    if Kind.CONTROL not in known.done and len(known.judge.baseline_runs) == 1:
        yield Move(Kind.CONTROL, BASELINE, POLICY.leap_gain, f"{CONTROL}=true")


def _uncompiled_with_effect(known: Known, usual: Settings) -> Settings:
    """The stack's uncompiled settings that still have an effect beside the usual ones."""
    members = [c for c in known.plan.candidates if known.uncompiled.get(c.key) == c.value]
    idle = {c.key for c in members if c.key not in usual and not known.plan.applies(c, usual)}
    return Settings({key: value for key, value in known.uncompiled.items() if key not in idle})


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
    plain = Settings({key: value for key, value in settings.items() if key not in NOT_COMPILED})
    gain = 1.0
    for candidate in known.plan.candidates:
        if settings.get(candidate.key) == candidate.value and known.plan.recipe(candidate).expensive:
            gain = max(gain, known.plan.expected_gain(candidate, plain.without(candidate.key), known.step_ms))
    return max(gain, POLICY.drop_gain)


def _gains_nothing(known: Known, plain: Settings) -> bool:
    """Whether a leap that compiles nothing ran, and was no faster than the baseline."""
    return bool(plain and known.judge.measured_runs(plain)) and known.judge.gain(plain, BASELINE).ratio <= 1


def _wanted(known: Known, settings: Settings) -> Settings:
    """The usual settings that were not dropped."""
    return Settings({key: value for key, value in settings.items() if key not in known.dropped})


def _compiling_is_hopeless(known: Known) -> bool:
    """Whether compiled stacks have failed so often that the next one will."""
    catalog = known.plan.catalog
    failed = [s for s in known.judge.runs if catalog.cost(s) and not known.judge.measured_runs(s)]
    return len(failed) >= POLICY.most_failures


def _needs_explaining(known: Known, settings: Settings) -> bool:
    """Whether settings ran but differ too much, and the instruments may still show that rounding or chance did it."""
    if len(settings) < 2:
        return False
    result = known.judge.result(settings)
    if result is None or not result.measured:
        return False
    if known.plan.consent.permits(settings, known.judge.numerics(settings, result)):
        return False
    return not {Kind.CONTROL, Kind.REFERENCE} <= known.done or _may_be_chance(known, settings, result)


def _may_be_chance(known: Known, settings: Settings, result: TrialResult) -> bool:
    """Whether steps that draw random numbers were seen too seldom to tell another draw from a fault."""
    judge = known.judge
    again = len(judge.runs.get(BASELINE, ()))
    draws = {run.losses or run.outputs for run in (*judge.baseline_runs, *judge.controls) if run.measured}
    if not judge.spread.random or len(draws) >= POLICY.enough_draws or again >= POLICY.most_runs:
        return False
    return known.plan.consent.permits(settings, judge.numerics(settings, result, unseen_draws=True))


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


def instruments(known: Known) -> Moves:
    """Moves that measure noise, rounding and the phases: due after the leaps, or when a result differs too much."""
    if any(_needs_explaining(known, settings) for settings in known.judge.runs):
        for kind in (Kind.CONTROL, Kind.REFERENCE):
            if kind not in known.done:
                yield Move(kind, BASELINE, POLICY.leap_gain, f"baseline, {kind}")
        if {Kind.CONTROL, Kind.REFERENCE} <= known.done:
            yield Move(Kind.AGAIN, BASELINE, POLICY.leap_gain, "baseline, other random numbers")
        return
    if Kind.CONTROL not in known.done:
        yield Move(Kind.CONTROL, BASELINE, 1.04, f"{CONTROL}=true")
    if Kind.PROFILE not in known.done:
        yield Move(Kind.PROFILE, BASELINE, 1.08, "baseline, instrumented")
    if Kind.REFERENCE not in known.done:
        yield Move(Kind.REFERENCE, BASELINE, 1.02, "baseline in a higher precision")
    if Kind.HOST not in known.done and known.plan.facts.on_cuda:
        yield Move(Kind.HOST, BASELINE, 1.0001, "the same step on the CPU")


def drops(known: Known) -> Moves:
    """The stack without each of its settings, whose contribution is not known yet.

    Where the rest would have to be compiled anew, the stack that is not compiled tells the contribution for less.
    """
    for key in known.stack:
        rest = known.stack.without(key)
        if not rest or known.judge.has_tried(rest) or known.plan.catalog.conflict(rest):
            continue
        shown = known.contribution_of(key)
        plain, cheaper = known.uncompiled, known.uncompiled.without(key)
        anew = plain != known.stack and not known.plan.catalog.by_key(key).keeps_code
        if anew and key in plain and shown is None and known.judge.measured_runs(plain):
            if cheaper and not known.judge.has_tried(cheaper):
                yield Move(Kind.DROP, cheaper, POLICY.drop_gain, f"stack without {key}, not compiled", plain)
            continue
        gain = _gain_of_leaving_out(shown) if anew else _usual_gain_of_leaving_out(known, key)
        yield Move(Kind.DROP, rest, gain, f"stack without {key}", known.stack)


def _usual_gain_of_leaving_out(known: Known, key: str) -> float:
    """The usual gain of leaving out a setting: larger for autotuning in libraries, which may cost as well as gain."""
    recipe = known.plan.catalog.by_key(key)
    return 1.04 if recipe.times_kernels else POLICY.drop_gain


def _gain_of_leaving_out(contribution: float | None) -> float:
    """The expected gain of leaving out a setting and compiling anew: little, unless it cost speed before."""
    if contribution is None or contribution > POLICY.drop_gain:
        return POLICY.information
    return max(POLICY.information, 1 / contribution)


def swaps(known: Known) -> Moves:
    """Replace a value of the stack by another of the same setting, or a setting by one that it rules out."""
    for candidate in known.plan.candidates:
        present = known.stack.get(candidate.key)
        if not known.plan.may_stack(candidate):
            continue
        if present is not None and present != candidate.value:
            yield from _swap(known, candidate, known.stack.without(candidate.key))
        elif present is None and known.plan.is_usual(candidate) and not known.plan.fits(candidate, known.stack):
            yield from _rival(known, candidate)


def _swap(known: Known, candidate: Candidate, rest: Settings) -> Moves:
    settings = rest.merged(candidate.settings)
    if known.judge.has_tried(settings) or not known.plan.fits(candidate, rest):
        return
    if known.plan.recipe(candidate).ladder and not _is_neighbour(known, candidate):
        return
    gain = known.plan.expected_gain(candidate, known.stack, known.step_ms)
    if known.plan.recipe(candidate).ladder:
        gain = max(gain, POLICY.drop_gain)
    if gain > POLICY.least_gain:
        yield Move(Kind.SWAP, settings, gain, f"stack with {candidate.name}", known.stack, candidate)


def _is_neighbour(known: Known, candidate: Candidate) -> bool:
    rungs = sorted(c.value for c in known.plan.candidates if c.recipe == candidate.recipe)
    present = known.stack[candidate.key]
    if present not in rungs or candidate.value not in rungs:
        return True
    return abs(rungs.index(present) - rungs.index(candidate.value)) == 1


def _rival(known: Known, candidate: Candidate) -> Moves:
    for key in known.stack:
        rest = known.stack.without(key)
        contribution = known.contribution_of(key)
        if contribution is None or contribution > POLICY.beyond_rivals or not known.plan.fits(candidate, rest):
            continue
        settings = rest.merged(candidate.settings)
        gain = known.plan.expected_gain(candidate, rest, known.step_ms) / contribution
        if not known.judge.has_tried(settings) and gain > POLICY.least_gain:
            yield Move(Kind.SWAP, settings, gain, f"stack with {candidate.name}", known.stack, candidate)


def adds(known: Known) -> Moves:
    """One more setting on top of the stack: what the person accepted comes first."""
    company = known.plan.partnered(known.stack) if known.stack else []
    for candidate in (*known.plan.candidates, *company):
        if candidate.key in known.stack or not known.plan.may_stack(candidate):
            continue
        settings = known.stack.merged(candidate.settings)
        if known.judge.has_tried(settings) or not known.plan.fits(candidate, known.stack):
            continue
        if _was_tried(known, candidate) or not _is_next_rung(known, candidate) or _displaces(known, settings):
            continue
        gain = _gain_on_top(known, candidate)
        if known.plan.consent.accepts(candidate.recipe, candidate.value):
            gain = POLICY.leap_gain
        elif _is_cheaper_alone(known, candidate):
            continue
        if gain > POLICY.least_gain:
            kind = Kind.ADD if known.stack else Kind.ALONE
            name = f"stack with {candidate.name}" if known.stack else candidate.name
            yield Move(kind, settings, gain, name, known.stack, candidate)


def _displaces(known: Known, settings: Settings) -> bool:
    """Whether one of the stack's settings has no effect beside these: then this is a swap, not an addition."""
    members = [c for c in known.plan.candidates if known.stack.get(c.key) == c.value]
    return any(not known.plan.applies(member, settings) for member in members)


def _gain_on_top(known: Known, candidate: Candidate) -> float:
    """The usual gain, less what its trials alone and with others have shown."""
    usual = known.plan.expected_gain(candidate, known.stack, known.step_ms)
    if known.fails_with_others(candidate):
        return 1.0
    alone = Settings(candidate.settings)
    if not known.judge.has_tried(alone):
        return usual
    if not known.judge.measured_runs(alone):
        return 1.0
    comparison = known.judge.compare(alone)
    if comparison.speedup < POLICY.hopeless or known.plan.consent.why_not(alone, known.numerics(alone)):
        return 1.0
    if comparison.verdict is Verdict.FASTER:
        return max(usual, comparison.ci_low)
    share = POLICY.unclear if comparison.verdict is Verdict.NO_DIFFERENCE else POLICY.unclear / 3
    share = 1.0 if _has_partner(known, candidate) else share
    # What the stack alone makes possible, no trial without it could show.
    expected = min(usual, _gain_alone(known, candidate))
    return (1 + (expected - 1) * share) * usual / expected


def _gain_alone(known: Known, candidate: Candidate) -> float:
    """The usual gain of a candidate by itself."""
    return known.plan.expected_gain(candidate, BASELINE, known.judge.speed(BASELINE)[0])


def _has_partner(known: Known, candidate: Candidate) -> bool:
    """Whether the stack holds a recipe in whose company a candidate is known to help."""
    company = {recipe.id for recipe, _ in known.plan.catalog.in_order(known.stack)}
    return bool(company & known.plan.recipe(candidate).partners)


def _was_tried(known: Known, candidate: Candidate) -> bool:
    """Whether a candidate was tried on top already, beside all that is known to be good company for it."""
    tried = known.tried.get(candidate.name)
    if tried is None or len(tried) <= 1:
        return False
    new = {recipe.id for recipe, _ in known.plan.catalog.in_order(known.stack) if recipe.key not in tried}
    return not new & known.plan.recipe(candidate).partners


def _is_cheaper_alone(known: Known, candidate: Candidate) -> bool:
    """Whether a candidate's own trial comes first: it costs less than one on top of what has to be compiled.

    Not where the stack is what makes it worth much, as workers for a step that has become shorter than its data takes.
    """
    recipe = known.plan.recipe(candidate)
    if not known.stack or recipe.expensive or known.plan.is_usual(candidate) or not _is_alone_next(known, candidate):
        return False
    on_top = known.plan.expected_gain(candidate, known.stack, known.step_ms)
    return on_top <= max(POLICY.bold, _gain_alone(known, candidate))


def _is_alone_next(known: Known, candidate: Candidate) -> bool:
    in_plan = any(candidate.name == other.name for other in known.plan.candidates)
    return in_plan and not known.judge.has_tried(Settings(candidate.settings))


def singles(known: Known) -> Moves:
    """Candidates by themselves: those that may enter the stack later, then what the ranked list still lacks."""
    for candidate in known.plan.candidates:
        alone = Settings(candidate.settings)
        if known.judge.has_tried(alone) or known.plan.consent.rejects(candidate.recipe):
            continue
        if known.plan.is_not_worth_an_interpreter(candidate):
            continue
        if not _is_next_rung(known, candidate) or known.plan.catalog.conflict(alone):
            continue
        usual = 1.0 if known.fails_with_others(candidate) else _gain_alone(known, candidate)
        joins = candidate.key not in known.stack and known.plan.fits(candidate, known.stack)
        if joins and known.plan.may_stack(candidate) and _is_cheaper_alone(known, candidate):
            yield Move(Kind.ALONE, alone, max(usual, POLICY.information), candidate.name, BASELINE, candidate)
        elif not known.has_record(candidate) or _is_next_on_a_ladder(known, candidate):
            yield Move(Kind.ALONE, alone, POLICY.information, candidate.name, BASELINE, candidate)


def _is_next_on_a_ladder(known: Known, candidate: Candidate) -> bool:
    recipe = known.plan.recipe(candidate)
    return recipe.ladder and not known.plan.may_stack(candidate)


def _is_next_rung(known: Known, candidate: Candidate) -> bool:
    """Whether all values of a ladder before this one were tried, and the last of them asks for more."""
    if not known.plan.recipe(candidate).ladder or candidate.already_on:
        return True
    rungs = [c for c in known.plan.candidates if c.recipe == candidate.recipe and not c.already_on]
    before = rungs[: rungs.index(candidate)] if candidate in rungs else []
    if not before:
        return True
    records = [known.record(rung) for rung in before]
    if any(record is None for record in records):
        return False
    last = records[-1]
    assert last is not None, "none of the records is missing"
    known_records = [record for record in records if record is not None]
    return goes_on(last, known_records, known.plan.candidates, known.judge.baseline_rate)


def repeats(known: Known) -> Moves:
    """Run settings again where so few processes of them have not decided which are better."""
    yield from _baseline_again(known)
    yield from _simpler_again(known)
    yield from _rivals_again(known)


def _baseline_again(known: Known) -> Moves:
    judge = known.judge
    nulls = 1 + len(judge.runs.get(BASELINE, ())) + len(judge.controls)  # disturbed ones as well: the next may be too
    if 1 < nulls < POLICY.most_runs and judge.noise_floor > POLICY.noisy / 2:
        yield Move(Kind.AGAIN, BASELINE, 1 + judge.noise_floor / 2, "baseline, again")


def _simpler_again(known: Known) -> Moves:
    """The stack without one setting again, or the stack, where one run of each says that it is as fast without."""
    judge = known.judge
    for rest in (known.stack.without(key) for key in known.stack):
        ran = len(judge.measured_runs(rest)) if rest else 0
        ratio = judge.gain(rest, known.stack).ratio if ran == 1 and known.usable(rest) else 0.0
        if ratio >= POLICY.as_fast:
            once = _less_measured(known.judge, known.stack, rest)
            yield Move(Kind.AGAIN, once, max(POLICY.least_gain, _discounted(ratio)), f"again: {once}")
        elif ran > 1 and len(judge.measured_runs(known.stack)) == 1:
            yield Move(Kind.AGAIN, known.stack, POLICY.least_gain, f"again: {known.stack}")


def _rivals_again(known: Known) -> Moves:
    """A combination that seems better than the stack again, or the stack, while it is not certain."""
    judge = known.judge
    for settings in dict.fromkeys((*known.tried.values(), *sorted(known.measured_leaps, key=len))):
        runs = judge.measured_runs(settings)
        if settings == known.stack or not runs or len(runs) >= POLICY.most_runs - 1 or not known.usable(settings):
            continue
        gain = judge.gain(settings, known.stack)
        unclear = gain.low <= 1 or known.needs_another_run(settings)
        ratio = gain.ratio
        if settings in known.measured_leaps and len(runs) == 1:  # a whole stack may have been unlucky as well as lucky
            ratio = max(ratio, math.sqrt(gain.high))
        if ratio > POLICY.least_gain and unclear and not gain.is_worse:
            once = _less_measured(known.judge, settings, known.stack)
            yield Move(Kind.AGAIN, once, _discounted(ratio), f"again: {once or 'baseline'}")


def _less_measured(judge: Judge, *combinations: Settings) -> Settings:
    """The first of the combinations that the fewest processes have run."""
    return min(combinations, key=lambda settings: len(judge.measured_runs(settings)))


def _discounted(ratio: float) -> float:
    """Half of a gain that few runs have shown: the settings that seem best were usually lucky."""
    return 1 + (ratio - 1) / 2


def turns(known: Known) -> Moves:
    """The stack in turn with the baseline: the figure that is reported. Not again where that has just failed."""
    stack, runs = known.stack, known.judge.runs
    failed = any(
        runs[settings] and not runs[settings][-1].measured for settings in (stack, BASELINE) if settings in runs
    )
    open_question = not known.judge.took_turns(stack) or known.undecided(stack)
    if stack and not (known.pending or failed) and known.usable(stack) and open_question:
        yield Move(Kind.TURNS, stack, POLICY.proof, "stack, confirmed")


def why_not(known: Known, candidate: Candidate) -> str:
    """The reason a candidate was not tried, where it is not the time; empty where only that was missing."""
    if known.plan.consent.rejects(candidate.recipe):
        return known.plan.consent.why_not(candidate.settings)
    if known.plan.is_not_worth_an_interpreter(candidate):
        return (
            "no speed-up is expected, and its trial starts Python and imports everything anew; "
            f"add --only {candidate.recipe} to measure it"
        )
    if not _is_next_rung(known, candidate):
        return _end_of_ladder(known, candidate)
    return ""


def _end_of_ladder(known: Known, candidate: Candidate) -> str:
    rungs = [c for c in known.plan.candidates if c.recipe == candidate.recipe and not c.already_on]
    for rung in reversed(rungs[: rungs.index(candidate)]):
        record = known.record(rung)
        if record is not None:
            return end_of_ladder(record)
    return ""
