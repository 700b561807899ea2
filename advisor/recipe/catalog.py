"""Finds and validates recipes: built-in ones, those in a user's folders, and those of installed entry points.

A third-party recipe that cannot be loaded becomes a line in ``Catalog.problems``; the session goes on without it.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from advisor.errors import UsageError
from advisor.figures.options import alternatives
from advisor.machine.toolchain import cannot_compile
from advisor.recipe import HEADINGS, PARALLEL, Recipe, Stage, card, section_of
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Facts, Mode, Skip, Value, text_of

ENTRY_POINT_GROUP = "perf_advisor.recipes"
# The least and the largest gain that a recipe may claim, as factors: one recipe's bug must not decide the search.
_LEAST_GAIN, _MOST_GAIN = 0.2, 10.0
_PACKAGE = "advisor.recipes"
_ID = re.compile(r"[a-z][a-z0-9_]*")
NONE: Mapping[str, Value] = {}
_LEFT = tomllib.loads(Path(__file__).with_name("removed.toml").read_text(encoding="utf-8"))
# Settings of removed recipes, and removed values of present recipes, each with the reason of the removal.
REMOVED: Mapping[str, str] = _LEFT["settings"]
_REMOVED_VALUES: Mapping[tuple[str, Value], str] = {
    (key, value): why for key, values in _LEFT["values"].items() for value, why in values.items()
}


@dataclass(frozen=True, slots=True)
class Proposals:
    """The catalogue's proposals for a workload: candidates in catalogue order, and a reason for each skipped recipe."""

    candidates: tuple[Candidate, ...]
    skipped: dict[str, str]


@dataclass(frozen=True)
class Catalog:
    """All loaded recipes, sorted by id, and the problems of recipes that could not be loaded."""

    recipes: Mapping[str, Recipe]
    problems: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[Recipe]:
        return iter(self.recipes.values())

    def __getitem__(self, recipe_id: str) -> Recipe:
        """The recipe with this id. Raises UsageError with the nearest ids if there is none."""
        return _found(self.recipes, recipe_id, f"there is no recipe {recipe_id!r}.", "recipes")

    @functools.cached_property
    def _by_key(self) -> Mapping[str, Recipe]:
        return {recipe.key: recipe for recipe in self}

    def by_key(self, key: str) -> Recipe:
        """The recipe that owns a setting key. Raises UsageError if no recipe owns it."""
        return self._by_key.get(key) or _found(self._by_key, key, f"no recipe owns the setting {key!r}.", "settings")

    def check(self, settings: Mapping[str, Value]) -> None:
        """Raise UsageError for a key that no recipe owns, and for a value that its recipe does not accept."""
        for key, value in settings.items():
            recipe = self.by_key(key)
            if not recipe.accepts(value):
                raise UsageError(
                    f"{key}: {text_of(value)} is not a value that the recipe {recipe.id} knows.",
                    f"`perf-advisor recipes {recipe.id}` explains it.",
                )

    def without_removed(self, settings: Mapping[str, Value]) -> Settings:
        """Leave out the settings of removed recipes, with a warning for each."""
        gone = {key: REMOVED[key] for key in settings if key in REMOVED and key not in self._by_key}
        gone |= {key: why for (key, value), why in _REMOVED_VALUES.items() if settings.get(key) == value}
        for key, why in gone.items():
            setting = f"{key}: {text_of(settings[key])}"
            warnings.warn(f"{setting} is left out, for its recipe was removed: {why}", stacklevel=2)
        return Settings(settings).filtered(lambda key: key not in gone)

    def in_order(self, settings: Mapping[str, Value]) -> list[tuple[Recipe, Value]]:
        """Settings with their recipes, in the order in which they are applied: by stage, then by ``order``."""
        pairs = [(self.by_key(key), value) for key, value in settings.items()]
        return sorted(pairs, key=lambda pair: self._places[pair[0].key])

    @functools.cached_property
    def _places(self) -> Mapping[str, int]:
        ordered = sorted(self, key=lambda recipe: (recipe.stage, recipe.order, recipe.id))
        return {recipe.key: place for place, recipe in enumerate(ordered)}

    def conflict(self, settings: Mapping[str, Value]) -> str | None:
        """The conflict between these settings, or None."""
        for recipe, value in self.in_order(settings):
            if reason := recipe.conflict(value, Settings(settings).without(recipe.key)):
                return reason
        return None

    def environment(self, settings: Mapping[str, Value]) -> dict[str, str]:
        """The environment variables that these settings need before Python starts."""
        variables = [recipe.environment(value) for recipe, value in self.in_order(settings)]
        return {name: text for each in variables for name, text in each.items()}

    def cost(self, settings: Mapping[str, Value]) -> float:
        """The duration of a trial's compilation, relative to the usual duration; 0 if nothing is compiled."""
        pairs = ((self.by_key(key), value) for key, value in settings.items())
        return max((recipe.costs.get(value, 1.0) for recipe, value in pairs if recipe.expensive), default=0.0)

    def compiles(self, settings: Mapping[str, Value]) -> bool:
        """Whether a trial of these settings compiles anything."""
        return self.cost(settings) > 0

    def compiled_code(self, settings: Mapping[str, Value]) -> Settings:
        """The settings that decide which code is compiled; empty if nothing is compiled.

        A trial finds its code in the compiler's cache if an earlier trial has compiled the same code.
        """
        if not self.compiles(settings):
            return Settings()
        return Settings({recipe.key: value for recipe, value in self.in_order(settings) if not recipe.keeps_code})

    def rounding(self, settings: Mapping[str, Value]) -> float:
        """The unit round-off of the coarsest arithmetic that these settings bring in.

        It is 0 for the defaults of PyTorch and for unknown keys.
        """
        known = [(self._by_key[key], value) for key, value in settings.items() if key in self._by_key]
        return max((recipe.roundings.get(value, 0.0) for recipe, value in known), default=0.0)

    def expected_gain(
        self, recipe_id: str, facts: Facts, value: Value, beside: Mapping[str, Value] | None = None
    ) -> float:
        """The speed-up factor that is expected if a recipe's setting changes to ``value``.

        ``beside`` are the settings that are on as well, on top of the user's own. The factor is relative to the
        recipe's value in them, so it also holds for replacing a value and for leaving one out.
        """
        recipe = self[recipe_id]
        current = {**facts.workload.current, **(beside or {})}
        joined = replace(facts, workload=replace(facts.workload, current=current))
        present = current.get(recipe.key, recipe.default)
        if value == present:
            return 1.0
        new, old = (recipe.expected_gain(joined, one) for one in (value, present))
        return min(max(new, _LEAST_GAIN), _MOST_GAIN) / min(max(old, _LEAST_GAIN), _MOST_GAIN)

    def proposes(self, candidate: Candidate, facts: Facts) -> bool:
        """Whether a recipe finds a value worth trying for a workload."""
        found = _proposed(self[candidate.recipe], facts)
        return not isinstance(found, Skip) and (candidate.value in found or candidate.already_on)

    def propose(
        self, facts: Facts, *, only: Sequence[str] = (), skip: Sequence[str] = (), accepted: Mapping[str, Value] = NONE
    ) -> Proposals:
        """Candidates for a workload. A recipe that is already on proposes its default, to measure its worth.

        A recipe in ``accepted`` has only the accepted value as a candidate, even if it would propose others.
        """
        candidates: list[Candidate] = []
        skipped: dict[str, str] = {}
        for recipe in self:
            if recipe.id in skip or (only and recipe.id not in only):
                skipped[recipe.id] = "left out by --skip" if recipe.id in skip else "not named by --only"
            elif isinstance(proposed := _values(recipe, facts, accepted.get(recipe.id)), Skip):
                skipped[recipe.id] = proposed.reason
            else:
                candidates += proposed
        return Proposals(tuple(candidates), skipped)


def _found(known: Mapping[str, Recipe], word: str, problem: str, listed: str) -> Recipe:
    """The recipe of this name. Raises UsageError with the problem and the nearest names if there is none."""
    if word in known:
        return known[word]
    close = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=3, cutoff=0.65)
    nearest = f"Did you mean {alternatives(close)}?" if close else ""
    raise UsageError(problem, nearest or f"`perf-advisor recipes` lists the {listed}.")


def load_catalog(folders: Iterable[str] = ()) -> Catalog:
    """Load the built-in recipes, those in ``folders``, and those of installed packages."""
    recipes = dict(_builtin())
    problems: list[str] = []
    for name, source in _third_party(folders):
        try:
            _add_recipes_of(source(), recipes)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # third-party code may raise anything; the session goes on
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return Catalog(dict(sorted(recipes.items())), tuple(problems))


@functools.cache
def _builtin() -> Mapping[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__):
        _add_recipes_of(importlib.import_module(f"{_PACKAGE}.{info.name}"), recipes)
    return recipes


def _third_party(folders: Iterable[str]) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    """The third-party modules with recipes: a name and a function that imports the module."""
    for folder in folders:
        try:
            paths = sorted(Path(folder).iterdir())
        except OSError as error:
            reason = f"the recipe folder {folder} cannot be read: {error.strerror}."
            raise UsageError(reason, "Give --recipes a folder of .py files.") from error
        for path in paths:
            if path.suffix == ".py" and not path.name.startswith("_"):
                yield str(path), functools.partial(_module_in, path)
    from importlib.metadata import entry_points  # late: the app opens without it

    for entry in entry_points(group=ENTRY_POINT_GROUP):
        yield f"entry point {entry.name}", functools.partial(importlib.import_module, entry.value.partition(":")[0])


def _module_in(path: Path) -> ModuleType:
    """Import the module in a file, under a name that no other module has."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"perf_advisor_recipe_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():  # reading a pipe would wait
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _add_recipes_of(module: ModuleType, recipes: dict[str, Recipe]) -> None:
    """Add a recipe for each class of the module that has a key."""
    classes = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Recipe)]
    for recipe in [cls() for cls in classes if "key" in vars(cls) and cls.__module__ == module.__name__]:
        _check(recipe, recipes)
        recipes[recipe.id] = recipe


def _check(recipe: Recipe, known: Mapping[str, Recipe]) -> None:
    if recipe.plan_field and recipe.plan_field not in StepPlan.__dataclass_fields__:
        raise ValueError(f"the plan_field of {type(recipe).__name__} is no field of StepPlan")
    if not _ID.fullmatch(recipe.id):
        raise ValueError(f"{recipe.id!r} is not an id: use lower-case letters, digits and underscores")
    if recipe.id in known:
        raise ValueError(f"the id {recipe.id} is taken")
    if any(recipe.key == other.key for other in known.values()):
        raise ValueError(f"the setting {recipe.key} is owned by another recipe")
    Settings({recipe.key: recipe.default})
    if not recipe.values or not isinstance(getattr(recipe, "stage", None), Stage):
        raise TypeError(f"{type(recipe).__name__} has no values, or no stage that is a Stage")
    if missing := [heading for heading in HEADINGS if not section_of(card(recipe), heading)]:
        raise ValueError(f"the module docstring lacks {', '.join(missing)}; it begins {card(recipe)[:40]!r}")


def _values(recipe: Recipe, facts: Facts, accepted: Value | None) -> list[Candidate] | Skip:
    if unfit := _unfit(recipe, facts):
        return unfit
    current = facts.current(recipe.key, recipe.default)
    if accepted is not None and accepted != current and recipe.accepts(accepted):
        return [Candidate(recipe.id, recipe.key, accepted)]
    try:
        proposed = _proposed(recipe, facts)
    except Exception as error:  # third-party code may raise anything; the other recipes are still tried
        return Skip(f"the recipe has a bug: {type(error).__name__}: {error}")
    already_on = current != recipe.default
    if isinstance(proposed, Skip):
        if not already_on:
            return proposed
        proposed = []  # nothing else is worth trying, but a trial still switches the person's value off
    values = [value for value in proposed if value != current]
    if already_on and recipe.ladder:
        values = _from_rung(values, current)
    if already_on and recipe.default not in values:
        values.append(recipe.default)
    if not values:
        return Skip(f"{recipe.key} is {text_of(current)} already, and there is no other value to try")
    return [
        Candidate(recipe.id, recipe.key, value, already_on=already_on and value == recipe.default) for value in values
    ]


def _proposed(recipe: Recipe, facts: Facts) -> Sequence[Value] | Skip:
    """The values that a recipe proposes; a Skip if the recipe compiles the model and that is impossible here."""
    found = recipe.candidates(facts)
    if isinstance(found, Skip) or not recipe.compiles:
        return found
    return cannot_compile(facts) or found


def _from_rung(values: list[Value], current: Value) -> list[Value]:
    """The values of a ladder that are above the present value; if there are none, the values below it."""
    numbers = [value for value in values if not isinstance(value, str)]
    if isinstance(current, str) or len(numbers) < len(values):
        return values
    above = [value for value in numbers if value > current]
    return list(above or reversed(numbers))


def _unfit(recipe: Recipe, facts: Facts) -> Skip | None:
    if facts.workload.mode not in recipe.modes:
        other, own = ("inference", "training") if Mode.TRAIN in recipe.modes else ("training", "inference")
        return Skip(f"applies to {own} only; this session measures {other}")
    if facts.workload.device_type not in recipe.devices:
        needs = "needs a CUDA GPU" if "cuda" in recipe.devices else "applies to the CPU only"
        here = {"cpu": "the CPU", "cuda": "a CUDA GPU"}.get(facts.workload.device_type, facts.workload.device_name)
        return Skip(f"{needs}; this session runs on {here}")
    if facts.workload.own_step and recipe.inside_step:
        return Skip("the step is your own, and this changes what happens inside it: write it there yourself")
    if facts.gpus == 1 and recipe.key.startswith(PARALLEL):
        return Skip("needs several GPUs: --gpus N")
    return None
