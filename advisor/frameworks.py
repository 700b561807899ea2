"""Finds the settings that apply to the objects of a framework's loop; the others are options of the framework."""

import warnings
from collections.abc import Mapping

from advisor.figures.formatting import format_setting
from advisor.recipe import MODES_WITH_GRAPHS, Stage
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Mode, Value

# Stages whose settings apply to the model and the optimizer; settings of other stages change the loop or its loader.
_ON_OBJECTS = frozenset({Stage.ENVIRONMENT, Stage.GLOBAL, Stage.MODEL, Stage.OPTIMIZER, Stage.COMPILE})


def of_objects(settings: Mapping[str, Value], device_type: str, done: Mapping[str, object]) -> Settings:
    """The settings that ``prepare`` applies; a warning names the settings that are left to the user.

    ``done`` are the values that the framework already has, or that the caller sets.
    """
    if settings.get("compile.scope") == "with_loss":  # a trainer, or its model, computes the loss
        settings = {**settings, "compile.scope": "model"}
    on_objects: dict[str, Value] = {}
    elsewhere: list[str] = []
    for recipe, value in load_catalog().in_order(Settings(settings)):
        if Mode.TRAIN not in recipe.modes or device_type not in recipe.devices:
            continue
        # precision.weights needs the step as well: it converts batches to the weights' type.
        if recipe.stage in _ON_OBJECTS and recipe.key != "precision.weights":
            on_objects[recipe.key] = value
            if recipe.key == "compile.mode" and value in MODES_WITH_GRAPHS:
                # These modes' graphs own the gradients until the loop marks a new step, so use the mode without graphs.
                on_objects[recipe.key] = MODES_WITH_GRAPHS[value]
                elsewhere.append(format_setting(recipe.key, value))
        elif done.get(recipe.key, recipe.default) != value and (value != recipe.default or recipe.habit):
            elsewhere.append(format_setting(recipe.key, value))
    if elsewhere:
        warnings.warn(
            f"TunedCallback cannot apply these settings from inside the trainer: {', '.join(elsewhere)}. They are "
            "arguments of the framework, or need a loop of your own; docs/own-loop.md has a table.",
            stacklevel=3,
        )
    return Settings(on_objects)
