"""The moves of the search: possible next measurements, each with its expected gain. Functions of what is known.

Each function yields the moves of one kind; those of the expert's stack are in ``leaps.py``. ``search.py`` takes the one
that is worth most for its cost.
"""

import functools
import math

from advisor.experiment.judging.judge import BASELINE, Judge
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.ladder import is_neighbour, is_next_rung, why_ended
from advisor.experiment.leaps import Moves, leaps, needs_explaining, share_of_waiting
from advisor.experiment.policy import POLICY
from advisor.experiment.ranking import CONTROL, INSTRUMENTED
from advisor.figures.roof import INPUT_BOUND_SHARE
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Outcome, Verdict


@functools.lru_cache(maxsize=2)  # what is left to do is told of one state, and the next move taken from it
def moves(known: Known) -> tuple[Move, ...]:
    """All that could be measured next. Of moves with equal worth the first is taken."""
    kinds = (disagreements, leaps, instruments, drops, swaps, adds, singles, repeats, turns)
    found = (move for kind in kinds for move in kind(known))
    too_long, cost = _cost_of_compiling_too_long(known), known.plan.catalog.cost
    return tuple(found if too_long == math.inf else (move for move in found if cost(move.settings) < too_long))


def _cost_of_compiling_too_long(known: Known) -> float:
    """The least cost of a compilation that was not done when its time was over; infinite where any was done."""
    tried = [(known.plan.catalog.cost(s), known.judge.result(s)) for s in known.judge.runs]
    compiled = [(cost, result) for cost, result in tried if cost and result is not None]
    if any(result.measured for _, result in compiled):
        return math.inf
    return min((cost for cost, result in compiled if result.outcome is Outcome.TIMED_OUT), default=math.inf)


def disagreements(known: Known) -> Moves:
    """A short run of the baseline, at once, while its runs and the control's lie far apart: one is the odd one."""
    judge = known.judge
    runs = (judge.baseline, *judge.runs.get(BASELINE, ()))  # disturbed ones as well: the next may be too
    too_few = len(runs) + len(judge.controls) < POLICY.most_runs
    if too_few and judge.apart > POLICY.most_apart and runs[-1].measured:
        yield Move(Kind.AGAIN, BASELINE, POLICY.leap_gain, "baseline, again")


def instruments(known: Known) -> Moves:
    """Moves that measure noise, rounding and the phases: due after the leaps, or when a result differs too much."""
    if needs_explaining(known):
        for kind in (Kind.CONTROL, Kind.REFERENCE):
            if kind not in known.done:
                yield Move(kind, BASELINE, POLICY.leap_gain, f"baseline, {kind}")
        if {Kind.CONTROL, Kind.REFERENCE} <= known.done:
            yield Move(Kind.AGAIN, BASELINE, POLICY.leap_gain, "baseline, other random numbers")
        return
    if Kind.CONTROL not in known.done:
        yield Move(Kind.CONTROL, BASELINE, 1.04, f"{CONTROL}=true")
    if Kind.PROFILE not in known.done:
        yield Move(Kind.PROFILE, BASELINE, 1.08, INSTRUMENTED)
    if Kind.REFERENCE not in known.done:
        yield Move(Kind.REFERENCE, BASELINE, 1.02, "baseline in a higher precision")
    if Kind.HOST not in known.done and known.plan.facts.on_cuda:
        yield Move(Kind.HOST, BASELINE, 1.0001, "the same step on the CPU")


def drops(known: Known) -> Moves:
    """The stack without each of its settings, whose contribution is not known yet.

    Where the rest would have to be compiled anew, the stack that is not compiled tells the contribution for less.
    """
    for key in known.stack:
        rest = known.plan.without(known.stack, key)
        if not rest or known.judge.has_tried(rest) or known.plan.catalog.conflict(rest):
            continue
        shown, recipe = known.contribution_of(key), known.plan.catalog.by_key(key)
        plain, cheaper = known.uncompiled, known.plan.without(known.uncompiled, key)
        anew = plain != known.stack and not recipe.keeps_code
        if anew and key in plain and shown is None and known.judge.measured_runs(plain):
            if cheaper and not known.judge.has_tried(cheaper):
                yield Move(Kind.DROP, cheaper, POLICY.drop_gain, f"stack without {recipe.id}, not compiled", plain)
            continue
        gain = _gain_of_leaving_out(shown) if anew else _usual_gain_of_leaving_out(known, key)
        yield Move(Kind.DROP, rest, gain, f"stack without {recipe.id}", known.stack)


def _usual_gain_of_leaving_out(known: Known, key: str) -> float:
    """The usual gain of leaving out a setting: larger for autotuning in libraries, which may cost as well as gain.

    Little for one that this machine calls for: without it a trial takes as long as the baseline's.
    """
    recipe = known.plan.catalog.by_key(key)
    if recipe.suits(known.plan.facts, known.stack[key]):
        return POLICY.information
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
    if known.plan.recipe(candidate).ladder and not is_neighbour(known, candidate):
        return
    gain = _usual_gain(known, candidate)
    if known.plan.recipe(candidate).ladder and not _still_waits(known):
        gain = max(gain, POLICY.drop_gain)
    if gain > POLICY.least_gain:
        yield Move(Kind.SWAP, settings, gain, f"stack with {candidate.name}", known.stack, candidate)


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
    """Moves that add one setting to the stack. Those that the person accepted come first."""
    company = known.plan.partnered(known.stack) if known.stack else []
    for candidate in (*known.plan.candidates, *company):
        if candidate.key in known.stack or not known.plan.may_stack(candidate):
            continue
        settings = known.stack.merged(candidate.settings)
        if known.judge.has_tried(settings) or not known.plan.fits(candidate, known.stack):
            continue
        accepted = known.plan.consent.accepts(candidate.recipe, candidate.value)
        turn = accepted or (is_next_rung(known, candidate) and not _was_tried(known, candidate))
        if not turn or _displaces(known, settings):
            continue
        gain = _gain_on_top(known, candidate)
        if accepted:
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
    """The usual gain of a candidate, corrected by its trials alone and with others."""
    usual = _usual_gain(known, candidate)
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
    share = POLICY.unclear if comparison.verdict in (Verdict.SAME, Verdict.UNCLEAR) else POLICY.unclear / 3
    share = 1.0 if _has_partner(known, candidate) else share
    # A setting that only the stack makes possible cannot be measured alone.
    expected = min(usual, _gain_alone(known, candidate))
    return (1 + (expected - 1) * share) * usual / expected


def _usual_gain(known: Known, candidate: Candidate) -> float:
    """The usual gain of a candidate on the stack, where it was timed how long that waits for its data."""
    return known.plan.expected_gain(candidate, known.stack, known.step_ms, waiting=_waiting(known))


def _still_waits(known: Known) -> bool:
    """Whether the stack was seen to wait for its data, however that is loaded in it."""
    return known.plan.feeds(known.stack) and (_waiting(known) or 0.0) > INPUT_BOUND_SHARE


def _waiting(known: Known) -> float | None:
    """The share of the stack's step in which it waits for its data; as if not compiled where only that was timed."""
    waiting = share_of_waiting(known, known.stack)
    return share_of_waiting(known, known.uncompiled) if waiting is None else waiting


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
    return _usual_gain(known, candidate) <= max(POLICY.bold, _gain_alone(known, candidate))


def _is_alone_next(known: Known, candidate: Candidate) -> bool:
    in_plan = any(candidate.name == other.name for other in known.plan.candidates)
    return in_plan and not known.judge.has_tried(Settings(candidate.settings))


def singles(known: Known) -> Moves:
    """Moves that measure one candidate by itself: those that may enter the stack later, then the rest of the list."""
    for candidate in known.plan.candidates:
        if not _may_run_alone(known, candidate):
            continue
        may_stack, gain = known.plan.may_stack(candidate), POLICY.information
        joins = may_stack and candidate.key not in known.stack and known.plan.fits(candidate, known.stack)
        if joins and _is_cheaper_alone(known, candidate):
            gain = max(gain, 1.0 if known.fails_with_others(candidate) else _gain_alone(known, candidate))
        elif known.has_record(candidate) and (may_stack or not known.plan.recipe(candidate).ladder):
            continue
        yield Move(Kind.ALONE, Settings(candidate.settings), gain, candidate.name, BASELINE, candidate)


def _may_run_alone(known: Known, candidate: Candidate) -> bool:
    """Whether a candidate was not tried by itself yet, and may be."""
    alone = Settings(candidate.settings)
    if known.judge.has_tried(alone) or known.plan.consent.rejects(candidate.recipe):
        return False
    if known.plan.is_not_worth_an_interpreter(candidate):
        return False
    return is_next_rung(known, candidate) and not known.plan.catalog.conflict(alone)


def repeats(known: Known) -> Moves:
    """Run settings again where so few processes of them have not decided which are better."""
    yield from _simpler_again(known)
    yield from _rivals_again(known)


def _simpler_again(known: Known) -> Moves:
    """The stack without one setting again, or the stack, where one run of each says that it is as fast without.

    Then either of the stack and what is reported in its place, while it is unclear which of them is better.
    """
    judge, found = known.judge, known.found
    for rest in (known.plan.without(known.stack, key) for key in known.stack):
        ran = len(judge.measured_runs(rest)) if rest else 0
        ratio = judge.gain(rest, known.stack).ratio if ran == 1 and known.usable(rest) else 0.0
        if ratio >= POLICY.as_fast:
            once = _less_measured(known.judge, known.stack, rest)
            yield from _again(known, once, max(POLICY.least_gain, _discounted(ratio)))
        elif ran > 1 and len(judge.measured_runs(known.stack)) == 1:
            yield from _again(known, known.stack, POLICY.least_gain)
    less = _less_measured(judge, known.stack, found)
    if found and found != known.stack and len(judge.measured_runs(less)) < POLICY.most_runs:
        yield from _again(known, less, POLICY.proof)


def _rivals_again(known: Known) -> Moves:
    """A combination that seems better than the stack again, or the stack, while it is not certain."""
    judge = known.judge
    for settings in dict.fromkeys((*known.tried.values(), *sorted(known.measured_leaps, key=len))):
        runs = judge.measured_runs(settings)
        if settings == known.stack or not runs or len(runs) >= POLICY.most_runs - 1 or not known.usable(settings):
            continue
        gain, once = judge.gain(settings, known.stack), settings in known.measured_leaps and len(runs) == 1
        if once and runs[0].disturbed and not judge.crowded:  # it was told at once: other trials are repeated at once
            yield from _again(known, settings, POLICY.bold)
            continue
        unclear = gain.low <= 1 or known.needs_another_run(settings)
        ratio = max(gain.ratio, math.sqrt(gain.high)) if once else gain.ratio  # a whole stack may have been unlucky
        if ratio > POLICY.least_gain and unclear and not gain.is_worse:
            yield from _again(known, _less_measured(known.judge, settings, known.stack), _discounted(ratio))


def _again(known: Known, settings: Settings, gain: float) -> Moves:
    """Run settings once more, unless they failed the last time: they would fail again for as long as time is left."""
    runs = known.judge.runs.get(settings)
    if not runs or runs[-1].measured:
        alone = (candidate.name for candidate in known.plan.candidates if candidate.settings == settings)
        yield Move(Kind.AGAIN, settings, gain, f"again: {next(alone, str(settings)) or 'baseline'}")


def _less_measured(judge: Judge, *combinations: Settings) -> Settings:
    """The first of the combinations that the fewest processes have run."""
    return min(combinations, key=lambda settings: len(judge.measured_runs(settings)))


def _discounted(ratio: float) -> float:
    """Half of a gain that few runs have shown: the settings that seem best were usually lucky."""
    return 1 + (ratio - 1) / 2


def turns(known: Known) -> Moves:
    """The stack in turn with the baseline: the figure that is reported. Not again where that has just failed."""
    stack, runs = known.to_confirm, known.judge.runs
    failed = any(
        runs[settings] and not runs[settings][-1].measured for settings in (stack, BASELINE) if settings in runs
    )
    open_question = not known.judge.took_turns(stack) or known.undecided(stack)
    if stack and not (known.pending or failed) and known.usable(stack) and open_question:
        gain = POLICY.only_proof if need_turns(known) else POLICY.proof
        yield Move(Kind.TURNS, stack, gain, "stack, confirmed")


def need_turns(known: Known) -> bool:
    """Whether the stack seems to gain much, and the machine is so noisy that only the turns can show it."""
    stack = known.to_confirm
    return bool(stack) and known.judge.gain(stack, BASELINE).ratio >= POLICY.bold and not known.may_recommend(stack)


def why_not(known: Known, candidate: Candidate) -> str:
    """The reason a candidate was not tried, where it is not the time; empty where only that was missing."""
    if known.plan.consent.rejects(candidate.recipe):
        return known.plan.consent.why_not(candidate.settings)
    if known.plan.is_not_worth_an_interpreter(candidate):
        return (
            "no speed-up is expected, and its trial starts Python and imports everything anew; "
            f"add --only {candidate.recipe} to measure it"
        )
    return "" if is_next_rung(known, candidate) else why_ended(known, candidate)
