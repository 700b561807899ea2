"""Fallbacks: simpler forms of a stack that failed, the one first that most likely is without the cause."""

from collections.abc import Iterable, Iterator
from itertools import chain

from advisor.experiment.known import Known
from advisor.experiment.plan import COMPILE_MODE, COMPILE_SCOPE
from advisor.recipe.plan import AROUND_LOSS
from advisor.recipe.settings import Settings
from advisor.records import Cause, Outcome, TrialResult

GRAPH, MATMUL = "step.cuda_graph", "precision.float32_matmul"
LAYOUT = "model.memory_format"
ON_DEVICE = "step.create_on_device"
_PRECISION = ("precision.autocast", "precision.weights", MATMUL)


def fallback(known: Known, settings: Settings) -> Settings:
    """The next simpler form of settings that were tried and cannot be used; empty when nothing is left of them.

    A form that failed for another reason is without the first cause: the search goes on from there.
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
    """The reason that tried settings failed; the same for all that ran, which change the results."""
    result = known.judge.result(settings)
    return "" if result is None or result.measured else result.reason


def _forms(known: Known, settings: Settings) -> Iterator[Settings]:
    """All simpler forms: first those without what the failure names, then by how often each part is the cause."""
    result = known.judge.result(settings) or TrialResult(Outcome.SKIPPED)
    causes, late = result.causes, result.outcome is Outcome.TIMED_OUT
    graph, precision, others = (forms(known, settings) for forms in (_graph, _precision, _others))
    compiling = _compiling(known, settings, result)
    if result.measured or result.outcome is Outcome.NON_FINITE:  # it ran, and changed too much or took too much memory
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
    """Captured in another way: around the loss, or with its tensors made on the GPU. Then in parts, then not at all."""
    if not settings.get(GRAPH):
        return
    result, without = known.judge.result(settings), settings.without(GRAPH).without(ON_DEVICE)
    causes = result.causes if result is not None else ()
    if Cause.HOST_COPY in causes and known.plan.allows(Settings({ON_DEVICE: True})):
        yield settings.with_value(ON_DEVICE, True)
    if (
        Cause.CAPTURE_OF_LOSS in causes
        and settings[GRAPH] is True
        and known.plan.allows(Settings({GRAPH: AROUND_LOSS}))
    ):
        yield compiled_without_loss(without.with_value(GRAPH, AROUND_LOSS))
    if known.plan.catalog.compiles(settings):
        yield without.with_value(COMPILE_MODE, "reduce-overhead")
    yield without


def compiled_without_loss(settings: Settings) -> Settings:
    """Settings that compile no more than the model where the loss stays outside the CUDA graphs."""
    if settings.get(GRAPH) != AROUND_LOSS or settings.get(COMPILE_SCOPE) != "with_loss":
        return settings
    return settings.without(COMPILE_SCOPE).with_value(COMPILE_MODE, "default")


def _compiling(known: Known, settings: Settings, result: TrialResult) -> Iterator[Settings]:
    """Less compiled: the model alone, its repeated blocks, nothing; after a time-out only what takes less."""
    if not known.plan.catalog.compiles(settings):
        return
    rest = settings.without(COMPILE_SCOPE).without(COMPILE_MODE)
    scope = settings.get(COMPILE_SCOPE, "model")
    if Cause.DOUBLE_BACKWARD not in result.causes:  # which no compiled code has
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
    """Without one of the other settings, those that are applied last first."""
    special = {GRAPH, COMPILE_MODE, COMPILE_SCOPE, *_PRECISION}
    for recipe, _ in reversed(known.plan.catalog.in_order(settings)):
        if recipe.key not in special:
            yield settings.without(recipe.key)
