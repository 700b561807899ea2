"""Which combinations a landscape records, and in which order: what searches ask, the most telling first."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Facts, Mode, Numerics, Value

_CONTROL = "control"
_COMPILE = "compile.mode"
_SCOPE = "compile.scope"
_GRAPH = "step.cuda_graph"
# The workers of a loader in the stack, where as many cores are there.
_USUAL_WORKERS = 16
# So many of the fastest combinations are measured in so many processes.
_FASTEST = 3
_ENOUGH_RUNS = 5
_BATCH_SIZE = "data.batch_size"
_MOST_BATCH_SIZES = 3
# Values of the usual stack that are exchanged for others, in this order.
_SWAPS: tuple[tuple[str, Value], ...] = (
    (_COMPILE, "reduce-overhead"),
    (_SCOPE, "model"),
    (_SCOPE, "regional"),
    ("precision.autocast", "float16"),
    ("precision.autocast", "bfloat16"),
    ("precision.weights", "float16"),
    ("infer.grad", "inference_mode"),
    (_SCOPE, "pointwise"),
    (_COMPILE, "max-autotune-no-cudagraphs"),
    (_COMPILE, "max-autotune"),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A combination to record, in so many processes."""

    settings: Settings
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record: ``first`` at once, ``plain`` compiles nothing, ``compiled`` shares compilations, then the rest.

    ``usual`` is the uncompiled stack of all usual settings, ``stack`` the same compiled.
    """

    usual: Settings
    stack: Settings
    first: tuple[Wish, ...]
    plain: tuple[Wish, ...]
    compiled: tuple[Wish, ...]
    rest: tuple[Wish, ...]
    pool: tuple[Candidate, ...]


def plan(catalog: Catalog, facts: Facts) -> Plan:
    """The plan for a workload."""
    candidates = _candidates(catalog, facts)
    usual = _usual_stack(catalog, facts, candidates)
    stack = _compiled(catalog, facts, candidates, usual)
    uncaptured, uncaptured_stack = usual.without(_GRAPH), stack.without(_GRAPH)
    of_mode = [c for c in candidates if _is_usual(catalog, facts, c) and not catalog[c.recipe].expensive]
    alone = [Settings(c.settings) for c in candidates if usual.get(c.key) == c.value or c in of_mode]
    others = [c for c in of_mode if c.key not in usual]
    fed_alone, fed = _ladders(candidates, usual)
    first = [Wish(usual, 2), Wish(stack, 2), Wish(uncaptured_stack, 2), Wish(uncaptured, 2)]
    plain = [*alone, *fed_alone, *_left_out(usual), *(_with(usual, c) for c in others)]
    plain += [*(_in_its_place(usual, c) for c in others), *fed]
    plain += [*_swapped(catalog, candidates, usual, compiled=False), *_left_out(uncaptured)]
    compiled = [*_left_out(stack), *(_with(stack, c) for c in others), *(_in_its_place(stack, c) for c in others)]
    compiled += [Settings({_COMPILE: "default"}), *_swapped(catalog, candidates, stack, compiled=True)]
    compiled += [Settings({_COMPILE: "default", key: value}) for key, value in usual.items()]
    ordinary = _ordinary(catalog, facts, candidates)
    rest = [Settings(c.settings) for c in ordinary]
    rest += [*(_with(usual, c) for c in ordinary), *(_with(stack, c) for c in candidates)]
    rest += [Settings(c.settings) for c in candidates if catalog[c.recipe].expensive]
    return Plan(usual, stack, *_distinct(first, _once(plain), _once(compiled), _once(rest)), tuple(candidates))


def random_wishes(catalog: Catalog, made: Plan, seed: int) -> Iterator[Wish]:
    """Subsets of what may be combined, without end; half of them compiled where the stack is."""
    draw = random.Random(seed)
    keys = sorted({candidate.key for candidate in made.pool})
    while True:
        chosen: dict[str, Value] = {}
        for key in keys:
            values = [c.value for c in made.pool if c.key == key and not catalog[c.recipe].expensive]
            usual = made.usual.get(key)
            if values and draw.random() < (0.6 if usual is not None else 0.1):
                chosen[key] = usual if usual is not None and draw.random() < 0.8 else draw.choice(values)
        if _COMPILE in made.stack and draw.random() < 0.5:
            chosen |= {key: made.stack[key] for key in (_COMPILE, _SCOPE) if key in made.stack}
        yield Wish(Settings(chosen))


def changes_results(catalog: Catalog, facts: Facts, settings: Mapping[str, Value]) -> bool:
    """Whether settings change what is computed, by what their recipes declare."""
    mode = facts.workload.mode
    return any(recipe.numerics_of(value, mode) is Numerics.CHANGED for recipe, value in catalog.in_order(settings))


def may_stack(catalog: Catalog, facts: Facts, settings: Mapping[str, Value]) -> bool:
    """Whether settings could be what a session recommends: no declared change of results, and no bad habit."""
    habits = [recipe.id for recipe, _ in catalog.in_order(settings) if recipe.habit and not recipe.usual]
    return not habits and not changes_results(catalog, facts, settings)


def fastest_unsure(runs: Mapping[Settings, Sequence[float]]) -> Settings | None:
    """Which of the fastest combinations to measure once more: the best that is known should not be a lucky draw.

    ``runs`` are the seconds per sample of each combination's processes. None when all of the fastest are known well.
    """
    fastest = sorted(runs, key=lambda settings: median(runs[settings]))[:_FASTEST]
    unsure = [settings for settings in fastest if len(runs[settings]) < _ENOUGH_RUNS]
    return min(unsure, key=lambda settings: len(runs[settings]), default=None)


def _candidates(catalog: Catalog, facts: Facts) -> list[Candidate]:
    """All that is proposed for the workload, and for the same with workers, but the control."""
    found = {c.name: c for c in catalog.propose(facts).candidates if c.recipe != _CONTROL}
    loader = facts.workload.loader
    if loader is not None and not loader.num_workers:
        with_workers = replace(loader, num_workers=_workers(facts), persistent_workers=True)
        fed = replace(facts, workload=replace(facts.workload, loader=with_workers))
        for candidate in catalog.propose(fed).candidates:
            if candidate.recipe != _CONTROL:
                found.setdefault(candidate.name, candidate)
    return list(found.values())


def _ordinary(catalog: Catalog, facts: Facts, candidates: Iterable[Candidate]) -> list[Candidate]:
    """What compiles nothing: the kinds last that a search asks last, and of batch sizes the first few."""
    batch_sizes = [c for c in candidates if c.key == _BATCH_SIZE][_MOST_BATCH_SIZES:]
    found = [c for c in candidates if not catalog[c.recipe].expensive and c not in batch_sizes]

    def late(candidate: Candidate) -> tuple[bool, bool, bool]:
        changes = changes_results(catalog, facts, candidate.settings)
        return changes, bool(catalog.environment(candidate.settings)), catalog[candidate.recipe].habit

    return sorted(found, key=late)


def _workers(facts: Facts) -> int:
    return max(1, min(_USUAL_WORKERS, facts.hardware.host.usable_cores))


def _usual_stack(catalog: Catalog, facts: Facts, candidates: Iterable[Candidate]) -> Settings:
    """What an expert would write without compiling: every usual value that has something to do beside the others."""
    stack: dict[str, Value] = {}
    for candidate in candidates:
        recipe = catalog[candidate.recipe]
        if recipe.expensive or recipe.times_kernels or not _is_usual(catalog, facts, candidate):
            continue
        if not catalog.conflict({**stack, **candidate.settings}):
            stack.setdefault(candidate.key, candidate.value)
    workers = [c for c in candidates if c.key == "data.num_workers" and not isinstance(c.value, str)]
    if workers:
        wanted = _workers(facts)
        stack["data.num_workers"] = min(workers, key=lambda c: abs(int(c.value) - wanted)).value
    chosen = [c for c in candidates if stack.get(c.key) == c.value and c.key in stack]
    idle = {c.key for c in chosen if not c.already_on and not _has_work(catalog, facts, c, stack)}
    return Settings({key: value for key, value in stack.items() if key not in idle})


def _is_usual(catalog: Catalog, facts: Facts, candidate: Candidate) -> bool:
    usual = catalog[candidate.recipe].is_usual(candidate.value, facts.workload.mode)
    return usual and not changes_results(catalog, facts, candidate.settings)


def _has_work(catalog: Catalog, facts: Facts, candidate: Candidate, stack: Mapping[str, Value]) -> bool:
    """Whether a recipe would propose a value to somebody who has the rest of the stack already."""
    if candidate.key.startswith("data."):
        return True
    others = {key: value for key, value in stack.items() if key != candidate.key}
    current = {**facts.workload.current, **others}
    return catalog.proposes(candidate, replace(facts, workload=replace(facts.workload, current=current)))


def _compiled(catalog: Catalog, facts: Facts, candidates: Iterable[Candidate], usual: Settings) -> Settings:
    """The usual stack compiled, in training with the loss; the stack itself where nothing can be compiled."""
    proposed = {(c.key, c.value) for c in candidates}
    if (_COMPILE, "default") not in proposed:
        return usual
    with_loss = facts.workload.mode is Mode.TRAIN and (_SCOPE, "with_loss") in proposed
    wanted = {**usual, _COMPILE: "default", **({_SCOPE: "with_loss"} if with_loss else {})}
    return Settings(wanted) if not catalog.conflict(wanted) else Settings({**usual, _COMPILE: "default"})


def _left_out(stack: Settings) -> list[Settings]:
    return [stack.without(key) for key in stack] if len(stack) > 1 else []


def _swapped(catalog: Catalog, candidates: Iterable[Candidate], stack: Settings, *, compiled: bool) -> list[Settings]:
    """The stack with one value exchanged, without a graph or half-precision weights where they disagree with it."""
    proposed = {(c.key, c.value) for c in candidates} | {(_SCOPE, "model"), ("precision.autocast", "none")}
    found = []
    for key, value in _SWAPS:
        if (key, value) not in proposed or stack.get(key) == value or (key.startswith("compile.") and not compiled):
            continue
        wanted = Settings({**stack, key: value})
        for other in (_GRAPH, "precision.weights"):
            if catalog.conflict(wanted) and other != key:
                wanted = wanted.without(other)
        found.append(wanted)
    return found


def _ladders(candidates: Iterable[Candidate], usual: Settings) -> tuple[list[Settings], list[Settings]]:
    """The values for a loader: numbers of workers alone, and the others beside workers and on the usual stack."""
    fed = [c for c in candidates if c.key.startswith("data.") and c.key != _BATCH_SIZE]
    with_workers = {key: value for key, value in usual.items() if key == "data.num_workers"}
    alone = [Settings(c.settings) for c in fed if c.key == "data.num_workers"]
    beside = [Settings({**with_workers, **c.settings}) for c in fed]
    return alone, [*(_with(usual, c) for c in fed), *beside]


def _with(stack: Settings, candidate: Candidate) -> Settings:
    return Settings({**stack, **candidate.settings})


def _in_its_place(stack: Settings, candidate: Candidate) -> Settings:
    """The stack with a precision of its own instead of half precision; other candidates beside the stack."""
    if not candidate.key.startswith("precision."):
        return _with(stack, candidate)
    return _with(stack.without("precision.autocast").without("precision.weights"), candidate)


def _once(combinations: Iterable[Settings]) -> Iterator[Wish]:
    return map(Wish, combinations)


def _distinct(*parts: Iterable[Wish]) -> list[tuple[Wish, ...]]:
    """The parts without what an earlier one has already, and without the baseline."""
    seen = {Settings({})}
    found = []
    for part in parts:
        kept = []
        for wish in part:
            if wish.settings not in seen:
                seen.add(wish.settings)
                kept.append(wish)
        found.append(tuple(kept))
    return found
