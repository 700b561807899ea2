"""Applying settings: recipes in the order of their stages, then what follows from the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor.catalog import Catalog
from advisor.errors import RefusedError, UsageError
from advisor.recipe import Components, Recipe
from advisor.records import Value
from advisor.runtime.step import finish_components


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
    reason = catalog.conflict(settings)
    if reason:
        raise UsageError(f"these settings cannot be combined: {reason}.", "Leave one of them out.")
    for recipe, value in catalog.in_order(settings):
        try:
            recipe.apply(components, value)
        except RefusedError as error:
            if refused is None:
                raise
            refused(recipe, value, error)
    finish_components(components)
