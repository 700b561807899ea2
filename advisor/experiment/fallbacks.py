"""Fallbacks: simpler forms of a stack that failed, by the kind of failure, then the most frequent causes first."""

from collections.abc import Callable, Iterator

from advisor.experiment.known import Known
from advisor.experiment.plan import COMPILE_MODE, COMPILE_SCOPE
from advisor.recipe.plan import AROUND_LOSS
from advisor.recipe.settings import Settings
from advisor.records import Cause, Outcome, TrialResult

GRAPH, AUTOCAST, WEIGHTS, MATMUL = (
    "step.cuda_graph",
    "precision.autocast",
    "precision.weights",
    "precision.float32_matmul",
)
LAYOUT = "model.memory_format"
ON_DEVICE = "step.create_on_device"
_PRECISION = (AUTOCAST, WEIGHTS, MATMUL)

Fallback = Callable[[Known, Settings], Iterator[Settings]]


def fallback(known: Known, settings: Settings) -> Settings:
    """The next simpler form of settings that were tried and cannot be used; empty when nothing is left of them.

    A form that failed for another reason is without the first cause: the search goes on from there.
    """
    for remove in _order(known, settings):
        for form in remove(known, settings):
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


def _order(known: Known, settings: Settings) -> list[Fallback]:
    """The fallbacks, the one most likely to remove the cause of the failure first."""
    usual: list[Fallback] = [_around_loss, _graph, _compiling, _without_half_precision, _others]
    result = known.judge.result(settings)
    if result is None:
        return usual
    if result.measured or result.outcome is Outcome.NON_FINITE:  # it ran, and changed too much or took too much memory
        if known.judge.goal.fits(result):
            return [_without_half_precision, _others, _graph, _compiling]
        return [_graph, _compiling, _others, _without_half_precision]
    blamed: dict[Cause, Fallback] = {
        Cause.DOUBLE_BACKWARD: _without("compile."),
        Cause.HOST_COPY: _on_device,
        Cause.COMPILER: _compiling,
        Cause.LAYOUT: _without(LAYOUT),
        Cause.OPERATION: _compiling if known.plan.catalog.compiles(settings) else _without_half_precision,
    }
    first = [remove for cause, remove in blamed.items() if cause in result.causes][:1]
    return [*first, *([_compiling] if result.outcome is Outcome.TIMED_OUT else []), *usual]


def may_be_compiled_away(result: TrialResult | None) -> bool:
    """Whether the obstacle to capturing a step may disappear once the step is compiled.

    The compiler keeps constants on the GPU, and derives a backward pass of its own, which does not wait for the host.
    """
    return result is not None and not {Cause.CAPTURE_OF_BACKWARD, Cause.HOST_COPY}.isdisjoint(result.causes)


def _graph(known: Known, settings: Settings) -> Iterator[Settings]:
    """Without capturing the step: with graphs of the compiled parts where there are any, then without."""
    if not settings.get(GRAPH):
        return
    without = settings.without(GRAPH).without(ON_DEVICE)
    if known.plan.catalog.compiles(settings):
        yield without.with_value(COMPILE_MODE, "reduce-overhead")
    yield without


def _around_loss(known: Known, settings: Settings) -> Iterator[Settings]:
    """The settings with the loss outside the CUDA graph, where only the loss could not be captured."""
    result = known.judge.result(settings)
    of_loss = result is not None and Cause.CAPTURE_OF_LOSS in result.causes
    if settings.get(GRAPH) is True and of_loss and known.plan.allows(Settings({GRAPH: AROUND_LOSS})):
        yield compiled_without_loss(settings.with_value(GRAPH, AROUND_LOSS).without(ON_DEVICE))


def compiled_without_loss(settings: Settings) -> Settings:
    """Settings that compile no more than the model where the loss stays outside the CUDA graphs."""
    if settings.get(GRAPH) != AROUND_LOSS or settings.get(COMPILE_SCOPE) != "with_loss":
        return settings
    return settings.without(COMPILE_SCOPE).with_value(COMPILE_MODE, "default")


def _on_device(known: Known, settings: Settings) -> Iterator[Settings]:
    """The settings with the step's own tensors created on the GPU, so that it can be captured."""
    on_device = Settings({ON_DEVICE: True})
    if settings.get(GRAPH) and known.plan.allows(on_device):
        yield settings.merged(on_device)


def _compiling(known: Known, settings: Settings) -> Iterator[Settings]:
    """Less compiled: the model alone, its repeated blocks, nothing; after a time-out only what takes less."""
    if not known.plan.catalog.compiles(settings):
        return
    rest = settings.without(COMPILE_SCOPE).without(COMPILE_MODE)
    result = known.judge.result(settings)
    scope = settings.get(COMPILE_SCOPE, "model")
    if settings.get(COMPILE_MODE, "default") != "default":
        yield settings.with_value(COMPILE_MODE, "default")
    if scope == "with_loss" and not (result and result.outcome is Outcome.TIMED_OUT):
        yield rest.with_value(COMPILE_MODE, "default")
    if scope != "regional" and known.plan.has(COMPILE_SCOPE, "regional"):
        yield rest.with_value(COMPILE_SCOPE, "regional")
    yield rest


def _without(prefix: str) -> Fallback:
    """The settings without those whose keys begin like this."""
    return lambda known, settings: iter([settings.filtered(lambda key: not key.startswith(prefix))])


def _without_half_precision(known: Known, settings: Settings) -> Iterator[Settings]:
    """The settings with TensorFloat-32 instead of half precision, then in the user's own precision."""
    rounded = [c for c in known.plan.candidates if c.key == MATMUL and known.plan.is_usual(c)]
    for key in filter(settings.__contains__, _PRECISION):
        rest = settings.without(key)
        for candidate in rounded:
            if key != MATMUL and MATMUL not in rest and known.plan.fits(candidate, rest):
                yield rest.merged(candidate.settings)
        yield rest


def _others(known: Known, settings: Settings) -> Iterator[Settings]:
    """Without one of the other settings, those that are applied last first."""
    special = {GRAPH, COMPILE_MODE, COMPILE_SCOPE, *_PRECISION}
    for recipe, _ in reversed(known.plan.catalog.in_order(settings)):
        if recipe.key not in special:
            yield settings.without(recipe.key)
