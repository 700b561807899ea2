"""Whole stacks: the settings that an expert would write for a workload, in the strongest form that runs here.

A stack is first measured without compiling, then compiled. If a form fails, a simpler one is tried. ``moves.py`` has
the moves around the present stack.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from advisor.experiment import policy
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.plan import COMPILE_MODE, COMPILE_SCOPE
from advisor.judging.judge import BASELINE
from advisor.recipe import NOT_COMPILED, Stage
from advisor.recipe.plan import AROUND_LOSS
from advisor.recipe.settings import Settings
from advisor.records import Cause, Outcome, TrialResult

GRAPH, MATMUL = "step.cuda_graph", "precision.float32_matmul"
LAYOUT = "model.memory_format"
ON_DEVICE = "step.create_on_device"
_PRECISION = ("precision.autocast", "precision.weights", MATMUL)

Moves = Iterator[Move]


def whole_stacks(known: Known) -> Moves:
    """The expert's stack: first without compiling, then compiled; if it fails, without the part that failed.

    It includes settings that the search has found since. A setting that gained nothing is tried again once the step no
    longer waits for data. After a decision it is the remaining stack, if that was not measured yet.
    """
    if known.pending:
        yield Move(Kind.STACK, known.stack, policy.STACK_GAIN, f"combination: {known.stack}")
        return
    if needs_explaining(known):
        return
    usual = known.usual.filtered(lambda key: key not in known.dropped)
    plain = _usable_form(known, _usable_form(known, usual).merged(known.uncompiled))
    if not set(usual) <= set(known.stack) and not known.judge.has_tried(plain):
        yield Move(Kind.STACK, plain, policy.STACK_GAIN, f"combination: {plain}")
    else:
        yield from _compiled_stack(known, plain)


def _compiled_stack(known: Known, plain: Settings) -> Moves:
    """The uncompiled stack, compiled in the strongest form that runs here."""
    compiles = known.compiles.filtered(lambda key: key not in known.dropped)
    compiled = _captured(known, plain, plain.merged(compiles)) if compiles else plain
    compiled = _usable_form(known, compiled)
    if compiled not in (plain, known.stack) and not known.judge.has_tried(compiled):
        # Several settings compile, and each of them alone would gain as much.
        rest, plan = compiled.filtered(lambda key: key not in NOT_COMPILED), known.plan
        compiling = [c for c in plan.candidates if compiled.get(c.key) == c.value and plan.recipe(c).expensive]
        gains = (plan.expected_gain(c, rest.without(c.key), known.step_ms) for c in compiling)
        yield Move(Kind.STACK, compiled, max([policy.PROOF, *gains]), f"combination: {compiled}")


def _captured(known: Known, plain: Settings, compiled: Settings) -> Settings:
    """A compiled stack, captured whole if compiling may avoid the earlier failure, else in parts by the compiler."""
    if known.usual.get(GRAPH) is not True or GRAPH in known.dropped or compiled.get(GRAPH) is True:
        return compiled
    whole, compiles = compiled.with_value(GRAPH, True), known.plan.catalog.compiles
    # The compiler keeps constants on the GPU, and its own backward pass does not wait for the host.
    obstacles = {Cause.CAPTURE_OF_BACKWARD, Cause.HOST_COPY}
    failed = [runs[-1].causes for s, runs in known.judge.runs.items() if s.get(GRAPH) is True and not compiles(s)]
    if not all(map(obstacles.isdisjoint, failed)) and known.may_be_usable(whole):
        return whole
    if GRAPH in plain or COMPILE_MODE in known.dropped or not known.plan.has(COMPILE_MODE, "reduce-overhead"):
        return compiled_without_loss(compiled)
    return compiled.with_value(COMPILE_MODE, "reduce-overhead")


def compiled_next(known: Known, plain: Settings) -> Settings:
    """The settings to compile next, after an uncompiled stack that runs; empty if nothing is compiled."""
    return next((move.settings for move in _compiled_stack(known, plain) if move.has_priority), BASELINE)


def needs_explaining(known: Known) -> bool:
    """Whether a stack ran but differs too much, and the instruments may still show that rounding or chance did it."""
    judge, permits = known.judge, known.plan.consent.permits
    if {Kind.CONTROL, Kind.REFERENCE} <= known.done:
        # There may have been too few draws of random numbers to distinguish another draw from a fault.
        draws = {run.losses or run.outputs for run in judge.unchanged_runs}
        again = len(judge.runs.get(BASELINE, ()))
        if not (judge.spread.random and len(draws) < policy.MOST_RUNS and again < policy.MOST_RUNS):
            return False
    stacks = (one for one in judge.runs if (len(one) > 1 or one == known.usual) and judge.measured_runs(one))
    return not all(permits(settings, judge.numerics(settings)) for settings in stacks)


def _usable_form(known: Known, goal: Settings) -> Settings:
    """The strongest form of a goal that is untried or usable. Each failed form is replaced by a simpler one."""
    consent = known.plan.consent
    settings = goal.filtered(lambda key: consent.permits({key: goal[key]}))
    if known.plan.catalog.conflict(settings):
        return BASELINE
    while settings and not known.may_be_usable(settings):
        settings = fallback(known, settings)
    return settings


# --- simpler forms ----------------------------------------------------------------------------------------------


def fallback(known: Known, settings: Settings) -> Settings:
    """The next simpler form of settings that were tried and cannot be used; empty if no form is left.

    If a form failed for another reason, the first cause is removed from it, and the search goes on from that form.
    """
    for form in _forms(known, settings):
        if form == settings or known.plan.catalog.conflict(form):
            continue
        if known.may_be_usable(form):
            return form
        if _failure(known, form) != _failure(known, settings) and (found := fallback(known, form)):
            return found
    return Settings()


def _failure(known: Known, settings: Settings) -> str:
    """The reason that tried settings failed; empty if they ran and only their results are wrong."""
    result = known.judge.result(settings)
    return "" if result is None or result.measured else result.reason


def _forms(known: Known, settings: Settings) -> Iterator[Settings]:
    """All simpler forms: first those without the cause of the failure, then those without the parts that often fail."""
    result = known.judge.result(settings) or TrialResult(Outcome.SKIPPED)
    causes, late = result.causes, result.outcome is Outcome.TIMED_OUT
    graph, precision, others = (forms(known, settings) for forms in (_graph, _precision, _others))
    compiling = _compiling(known, settings, result)
    if result.measured or result.outcome is Outcome.NON_FINITE:  # ran, but changed too much or took too much memory
        fits = known.judge.goal.fits(result)
        return chain(precision, others, graph, compiling) if fits else chain(graph, compiling, others, precision)
    first: Iterable[Settings] = ()
    if late or Cause.COMPILER in causes or Cause.DOUBLE_BACKWARD in causes:
        first = compiling
    elif Cause.LAYOUT in causes:
        first = (settings.without(LAYOUT),)
    elif Cause.OPERATION in causes:
        first = compiling if known.plan.catalog.compiles(settings) else precision
    return chain(first, graph, compiling, precision, others)


def _graph(known: Known, settings: Settings) -> Iterator[Settings]:
    """Settings that capture differently: around the loss, or with tensors created on the GPU; in parts; not at all."""
    if not settings.get(GRAPH):
        return
    result, without = known.judge.result(settings), settings.without(GRAPH).without(ON_DEVICE)
    causes = result.causes if result is not None else ()
    if Cause.HOST_COPY in causes and known.plan.allows(Settings({ON_DEVICE: True})):
        yield settings.with_value(ON_DEVICE, True)
    around_loss = Settings({GRAPH: AROUND_LOSS})
    if Cause.CAPTURE_OF_LOSS in causes and settings[GRAPH] is True and known.plan.allows(around_loss):
        yield compiled_without_loss(without.merged(around_loss))
    if known.plan.catalog.compiles(settings):
        yield without.with_value(COMPILE_MODE, "reduce-overhead")
    yield without


def compiled_without_loss(settings: Settings) -> Settings:
    """The settings, changed to compile the model alone if the loss stays outside the CUDA graphs."""
    if settings.get(GRAPH) != AROUND_LOSS or settings.get(COMPILE_SCOPE) != "with_loss":
        return settings
    return settings.without(COMPILE_SCOPE).with_value(COMPILE_MODE, "default")


def _compiling(known: Known, settings: Settings, result: TrialResult) -> Iterator[Settings]:
    """Settings that compile less: the model alone, its repeated blocks, nothing; after a time-out only the shorter."""
    if not known.plan.catalog.compiles(settings):
        return
    rest = settings.without(COMPILE_SCOPE).without(COMPILE_MODE)
    scope = settings.get(COMPILE_SCOPE, "model")
    if Cause.DOUBLE_BACKWARD not in result.causes:  # compiled code never supports it
        if settings.get(COMPILE_MODE, "default") != "default":
            yield settings.with_value(COMPILE_MODE, "default")
        if scope == "with_loss" and result.outcome is not Outcome.TIMED_OUT:
            yield rest.with_value(COMPILE_MODE, "default")
        if scope != "regional" and known.plan.has(COMPILE_SCOPE, "regional"):
            yield rest.with_value(COMPILE_SCOPE, "regional")
    yield rest


def _precision(known: Known, settings: Settings) -> Iterator[Settings]:
    """The settings with TensorFloat-32 instead of half precision, then in the user's own precision."""
    rounded = [c for c in known.plan.candidates if c.key == MATMUL and known.plan.is_usual(c)]
    for key in filter(settings.__contains__, _PRECISION):
        rest = settings.without(key)
        yield from (rest.merged(c.settings) for c in rounded if MATMUL not in settings and known.plan.fits(c, rest))
        yield rest


def _others(known: Known, settings: Settings) -> Iterator[Settings]:
    """The settings without one of the others, the last applied first; data settings last, since they rarely fail."""
    special = {GRAPH, COMPILE_MODE, COMPILE_SCOPE, *_PRECISION}
    recipes = [recipe for recipe, _ in reversed(known.plan.catalog.in_order(settings)) if recipe.key not in special]
    for recipe in sorted(recipes, key=lambda recipe: recipe.stage is Stage.DATA):
        yield settings.without(recipe.key)
