"""Applying settings: recipes in the order of their stages, then what follows from the plan."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.catalog import Catalog
from advisor.errors import UsageError
from advisor.recipe import Components
from advisor.records import Value
from advisor.runtime.step import finish_components


def apply_settings(catalog: Catalog, components: Components, settings: Mapping[str, Value]) -> None:
    """Change ``components`` (and the process's global flags) as the settings say.

    Raises UsageError when two settings cannot be combined or one is unknown; whatever a recipe raises passes through.
    """
    catalog.check(settings)
    reason = catalog.conflict(settings)
    if reason:
        raise UsageError(f"these settings cannot be combined: {reason}.", "Leave one of them out.")
    for recipe, value in catalog.in_order(settings):
        recipe.apply(components, value)
    finish_components(components)
