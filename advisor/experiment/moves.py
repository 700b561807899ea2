"""The moves of the search: possible next measurements, each with its expected gain. Functions of what is known.

Each function yields the moves of one kind; whole stacks are in ``stacks.py``. ``search.py`` takes the move with the
largest gain for its cost.
"""

import functools

from advisor.experiment import policy
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.ranking import CONTROL, INSTRUMENTED
from advisor.experiment.stacks import LAYOUT, Moves, needs_explaining, whole_stacks
from advisor.judging.judge import BASELINE
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Cause, Outcome, Verdict


@functools.lru_cache(maxsize=2)  # the progress and the next move need the moves of the same state
def moves(known: Known) -> tuple[Move, ...]:
    """All that could be measured next. If moves are worth the same, the first is taken."""
    kinds = (disagreements, whole_stacks, instruments, drops, changes, singles, repeats, turns)
    found = (move for kind in kinds for move in kind(known))
    return tuple(move for move in found if not _compiles_in_vain(known, move.settings))


def _compiles_in_vain(known: Known, settings: Settings) -> bool:
    """Whether compiling these settings would fail again: second derivatives, this layout, or too long a compilation."""
    cost, ran = known.plan.catalog.cost, known.judge.measured_runs
    if not cost(settings) or ran(settings):
        return False
    tried = {other: runs[-1] for other, runs in known.judge.runs.items() if cost(other)}
    none_done = not any(map(ran, tried))
    for other, last in tried.items():
        late = none_done and last.outcome is Outcome.TIMED_OUT and cost(settings) >= cost(other)
        same_layout = LAYOUT in other and settings.get(LAYOUT) == other[LAYOUT]
        if late or Cause.DOUBLE_BACKWARD in last.causes or (Cause.LAYOUT in last.causes and same_layout):
            return True
    return False


def disagreements(known: Known) -> Moves:
    """Propose a short run of the baseline while runs of the baseline and the control differ too much."""
    judge = known.judge
    runs = (judge.baseline, *judge.runs.get(BASELINE, ()))  # disturbed ones too: the next may be as well
    too_few = len(runs) + len(judge.controls) < policy.MOST_RUNS
    if too_few and judge.apart > policy.MOST_APART and runs[-1].measured:
        yield Move(Kind.AGAIN, BASELINE, policy.STACK_GAIN, "baseline, again")


# For each instrument: the name of its trial, and a gain that stands for the value of its result. A factor.
_INSTRUMENTS = {
    Kind.CONTROL: (f"{CONTROL}=true", 1.04),
    Kind.PROFILE: (INSTRUMENTED, 1.08),
    Kind.REFERENCE: ("baseline in a higher precision", 1.02),
}


def instruments(known: Known) -> Moves:
    """Moves that measure noise, rounding and the phases: after whole stacks, or if a result differs too much."""
    explaining = needs_explaining(known)
    for kind, (name, gain) in _INSTRUMENTS.items():
        if kind not in known.done and not (explaining and kind is Kind.PROFILE):
            yield Move(kind, BASELINE, policy.STACK_GAIN if explaining else gain, name)
    if explaining and {Kind.CONTROL, Kind.REFERENCE} <= known.done:
        yield Move(Kind.AGAIN, BASELINE, policy.STACK_GAIN, "baseline, other random numbers")


def drops(known: Known) -> Moves:
    """The stack without one setting, for each setting whose contribution is not known yet.

    If the remaining settings would have to be compiled again, the uncompiled stack shows the contribution at lower
    cost. If the setting has cost speed there, the compiled stack is measured too.
    """
    plan, judge, plain = known.plan, known.judge, known.uncompiled
    for key in known.stack:
        recipe, shown = plan.catalog.by_key(key), known.contribution(key, known.stack, plain)
        anew = plain != known.stack and not recipe.keeps_code
        tells = anew and shown is None and key in plain and bool(judge.measured_runs(plain))
        whole, gain = plain if tells else known.stack, policy.PROOF
        if anew and not tells:
            gain = max(policy.INFORMATION, 1 / shown.speedup if shown and shown.speedup < 1 / policy.PROOF else 1.0)
        rest = plan.without(whole, key)
        if rest and not judge.has_tried(rest) and not plan.catalog.conflict(rest):
            name = f"combination without {recipe.id}{', not compiled' if tells else ''}"
            yield Move(Kind.DROP, rest, gain, name)


def changes(known: Known) -> Moves:
    """Moves that add one setting to the stack or change a value in it. An accepted addition has the largest gain."""
    plan, stack = known.plan, known.stack
    company = plan.partnered(stack) if stack else []
    members = [c for c in plan.candidates if stack.get(c.key) == c.value]
    for candidate in (*plan.candidates, *company):
        settings = stack.merged(candidate.settings)
        if settings == stack or known.judge.has_tried(settings):
            continue
        if not (plan.may_stack(candidate) and plan.fits(candidate, stack)):
            continue
        kind, name = (Kind.ADD, f"combination with {candidate.name}") if stack else (Kind.ALONE, candidate.name)
        if candidate.key in stack:
            kind, least = Kind.SWAP, policy.PROOF if plan.recipe(candidate).ladder else 1.0
            gain = max(_usual_gain(known, candidate), least)
        elif all(plan.applies(member, settings) for member in members):
            gain = _gain_on_top(known, candidate)
        else:
            continue  # a setting of the stack would have no effect with it
        if gain > policy.LEAST_GAIN:
            yield Move(kind, settings, gain, name, candidate)


def _gain_on_top(known: Known, candidate: Candidate) -> float:
    """The usual gain of a candidate, corrected by its trials alone and with others; 1 if it is not to be tried yet."""
    if known.plan.consent.accepts(candidate.recipe, candidate.value):
        return policy.STACK_GAIN
    was_tried = len(known.tried.get(candidate.name, ())) > 1  # on top of a stack
    if was_tried or not is_next_rung(known, candidate) or _comes_alone_first(known, candidate):
        return 1.0
    usual, alone = _usual_gain(known, candidate), Settings(candidate.settings)
    if not known.judge.has_tried(alone):
        return usual
    if not known.judge.measured_runs(alone) or not known.plan.consent.permits(alone, known.judge.numerics(alone)):
        return 1.0
    comparison = known.judge.compare(alone)
    if comparison.verdict is Verdict.FASTER:
        return max(usual, comparison.ci_low)
    return 1 + (usual - 1) * policy.UNCLEAR


def _usual_gain(known: Known, candidate: Candidate) -> float:
    """The usual gain of a candidate on the stack."""
    return known.plan.expected_gain(candidate, known.stack, known.step_ms)


def _comes_alone_first(known: Known, candidate: Candidate) -> bool:
    """Whether to try a candidate alone first, which is cheaper, because it promises little on the stack."""
    if not known.stack or known.plan.recipe(candidate).expensive or known.plan.is_usual(candidate):
        return False
    planned = known.plan.has(candidate.key, candidate.value) and not known.judge.has_tried(Settings(candidate.settings))
    return planned and _usual_gain(known, candidate) <= policy.LARGE_GAIN


def singles(known: Known) -> Moves:
    """Moves that measure one candidate by itself: first those that may enter the stack later, then all others."""
    plan = known.plan
    for candidate in plan.candidates:
        alone = Settings(candidate.settings)
        if known.judge.has_tried(alone) or plan.consent.rejects(candidate.recipe) or plan.catalog.conflict(alone):
            continue
        joins = plan.may_stack(candidate) and candidate.key not in known.stack and plan.fits(candidate, known.stack)
        gain = policy.INFORMATION
        if joins and _comes_alone_first(known, candidate):
            gain = max(gain, plan.expected_gain(candidate, BASELINE, known.judge.speed(BASELINE)[0]))
        elif known.record(candidate) is not None and (plan.may_stack(candidate) or not plan.recipe(candidate).ladder):
            continue
        if is_next_rung(known, candidate):
            yield Move(Kind.ALONE, alone, gain, candidate.name, candidate)


def repeats(known: Known) -> Moves:
    """Repeat settings that few runs have not decided: first the stack and what is reported instead of it."""
    judge, stack = known.judge, known.stack

    def again(gain: float, *combinations: Settings) -> Moves:
        """Run the combination with the fewest runs. Not if its latest run failed, since it would fail again."""
        settings = min(combinations, key=lambda one: len(judge.measured_runs(one)))
        runs = judge.runs.get(settings)
        if len(judge.measured_runs(settings)) < policy.MOST_RUNS and not (runs and not runs[-1].measured):
            yield Move(Kind.AGAIN, settings, gain, f"again: {settings}")

    if known.found and known.found != stack:
        yield from again(policy.PROOF, stack, known.found)
    for settings in sorted(judge.runs, key=len):
        runs = judge.measured_runs(settings)
        if settings == stack or len(runs) >= policy.MOST_RUNS - 1 or not known.may_be_stack(settings):
            continue
        gain, is_part = judge.gain(settings, stack), settings.items() < stack.items()
        if gain.high >= 1 and gain.ratio >= (1 / policy.LEAST_GAIN if is_part else policy.LEAST_GAIN):
            # Count half of the gain that few runs have shown: the settings that seem best were usually lucky.
            yield from again(max(policy.LEAST_GAIN, 1 + (gain.ratio - 1) / 2), settings, stack)


def turns(known: Known) -> Moves:
    """Time the stack in turn with the baseline for the reported figure; if nothing is clear, also what seems best."""
    judge, stack = known.judge, known.to_confirm
    promises = judge.gain(stack, BASELINE).ratio >= policy.LARGE_GAIN and not known.may_recommend(stack)
    for settings in dict.fromkeys((stack, known.most_promising)):
        failed = any(runs and not runs[-1].measured for runs in map(judge.runs.get, (settings, BASELINE)))
        open_question = not judge.took_turns(settings) or known.undecided(settings)
        if settings and not (known.pending or failed) and not known.why_unusable(settings) and open_question:
            gain = policy.LARGE_GAIN if promises and settings == stack else policy.PROOF
            yield Move(Kind.TURNS, settings, gain, "combination, in turns")


def why_not(known: Known, candidate: Candidate) -> str:
    """The reason that a candidate was not tried; empty if it only lacked time."""
    if known.plan.consent.rejects(candidate.recipe):
        return known.plan.consent.why_not(candidate.settings)
    if is_next_rung(known, candidate):
        return ""
    records = (known.record(rung) for rung in reversed(_rungs_before(known, candidate)))
    before = next(filter(None, records), None)  # the last tried value before the candidate's
    if before is None:
        return ""
    if before.result.outcome is Outcome.OUT_OF_MEMORY:
        return f"{before.candidate.name} ran out of memory, so larger values would too"
    if not before.result.measured:
        return f"{before.candidate.name} failed: {before.result.reason}"
    return f"{before.candidate.name} was no better than the value before it"


# --- ladders: recipes (number of workers) whose values are tried in order until one is no better than the last ----

# A ladder has passed its knee if it gains less than this from one value to the next. A factor.
_LEAST_CLIMB = 1.01


def is_next_rung(known: Known, candidate: Candidate) -> bool:
    """Whether all earlier values of a ladder were tried, and the last was better than all before it.

    A descending ladder begins with the value that is expected to be best. It goes on only while results improve, or if
    memory ran out.
    """
    before = _rungs_before(known, candidate)
    tried = [record for rung in before if (record := known.record(rung)) is not None]
    if not before or len(tried) < len(before):
        return not before
    first, last = before[0].value, candidate.value
    leads_down = not isinstance(first, str) and not isinstance(last, str) and first > last
    if leads_down and tried[-1].result.outcome is Outcome.OUT_OF_MEMORY:
        return True
    *earlier, latest = (record.samples_per_s or 0.0 for record in tried)
    best = max([known.judge.speed(BASELINE)[1], *earlier])
    return latest > (_LEAST_CLIMB if earlier and not leads_down else 1.0) * best


def _rungs_before(known: Known, candidate: Candidate) -> list[Candidate]:
    """The values of a ladder that are tried before this one; empty if the recipe is no ladder."""
    if not known.plan.recipe(candidate).ladder:
        return []
    rungs = [c for c in known.plan.candidates if c.recipe == candidate.recipe and not c.already_on]
    return rungs[: rungs.index(candidate)] if candidate in rungs else []
