"""Settings for a framework's loop: for its objects, and for the framework's own options."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.figures.formatting import format_setting
from advisor.recipe import MODES_WITH_GRAPHS, Stage
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Mode, Value

# Stages whose settings are done when the objects are prepared; the others are about the loop or its loader.
_ON_OBJECTS = frozenset({Stage.ENVIRONMENT, Stage.GLOBAL, Stage.MODEL, Stage.OPTIMIZER, Stage.COMPILE})
# Of these a part is left to the step: batches that take the weights' type.
_NEED_THE_STEP = frozenset({"precision.weights"})
_OWN_LOOP = "needs a loop of your own: step = tuning.train_step(model, optimizer, loss)"


@dataclass(frozen=True, slots=True)
class Division:
    """Settings for the objects, and instructions for each of the others."""

    objects: Settings
    elsewhere: dict[str, str]

    def warn(self, who: str) -> None:
        """Warn once about the settings that are left to the user."""
        if self.elsewhere:
            told = "; ".join(f"{setting}: {what}" for setting, what in self.elsewhere.items())
            warnings.warn(f"{who} cannot apply these settings from inside the trainer. {told}.", stacklevel=3)


def divide(
    settings: Mapping[str, Value],
    device_type: str,
    places: Mapping[str, Callable[[Value], str]],
    done: Mapping[str, object],
) -> Division:
    """Divide settings into those that ``prepare`` applies and those for the framework.

    ``places`` says by setting what a user writes for it; ``done`` are the values that the framework has already been
    told, or that the caller takes care of.
    """
    on_objects: dict[str, Value] = {}
    elsewhere: dict[str, str] = {}
    for recipe, value in load_catalog().in_order(Settings(settings)):
        if Mode.TRAIN not in recipe.modes or device_type not in recipe.devices:
            continue
        if recipe.stage in _ON_OBJECTS and recipe.key not in {*_NEED_THE_STEP, *places}:
            on_objects[recipe.key] = value
            if recipe.key == "compile.mode" and value in MODES_WITH_GRAPHS:
                # Their graphs own the gradients until the next step, which a loop has to mark.
                on_objects[recipe.key] = plain = MODES_WITH_GRAPHS[value]
                elsewhere[format_setting(recipe.key, value)] = (
                    f"compiled as {plain}; its CUDA graphs {_OWN_LOOP.replace('needs', 'need')}"
                )
        elif done.get(recipe.key, recipe.default) != value and (value != recipe.default or recipe.habit):
            told = places[recipe.key](value) if recipe.key in places else _OWN_LOOP
            elsewhere[format_setting(recipe.key, value)] = told
    return Division(Settings(on_objects), elsewhere)


def argument(call: str, name: str, words: Mapping[Value, Any] | None = None) -> Callable[[Value], str]:
    """Return a function that writes a setting as an argument of a call, with its value in the framework's words."""
    return lambda value: f"{call}({name}={(words or {}).get(value, value)!r})"
