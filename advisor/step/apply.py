"""Applying settings: recipes in the order of their stages, then the consequences of the plan."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from advisor.errors import RefusedError, UsageError
from advisor.recipe import Components, Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.records import Value
from advisor.step.optimizer import Together
from advisor.step.step import finish_components


def apply_settings(
    catalog: Catalog,
    components: Components,
    settings: Mapping[str, Value],
    *,
    refused: Callable[[Recipe, Value, RefusedError], None] | None = None,
) -> None:
    """Change ``components`` (and the process's global flags) as the settings say.

    A setting whose recipe refuses these objects is left out where ``refused`` is given, which is told. Raises
    UsageError when two settings cannot be combined or one is unknown; whatever else a recipe raises passes through.
    """
    catalog.check(settings)
    if reason := catalog.conflict(settings):
        raise UsageError(f"these settings cannot be combined: {reason}.", "Leave one of them out.")
    for recipe, value in catalog.in_order(settings):
        apply_recipe(recipe, components, value, refused)
    finish_components(components)


def apply_recipe(
    recipe: Recipe, components: Components, value: Value, refused: Callable[[Recipe, Value, RefusedError], None] | None
) -> None:
    """Apply one setting. With several optimizers, a setting about them is applied to each."""
    several = recipe.stage is Stage.OPTIMIZER and isinstance(components.optimizer, Together)
    each = [replace(components, optimizer=one) for one in components.optimizer.optimizers] if several else [components]
    for part in each:
        try:
            recipe.apply(part, value)
        except RefusedError as error:
            if refused is None:
                raise
            refused(recipe, value, error)
