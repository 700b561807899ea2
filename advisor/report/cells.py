"""Cells that several tables have."""

from __future__ import annotations

from advisor.figures.formatting import format_bytes_change, format_change, format_setting
from advisor.recipe.catalog import Catalog
from advisor.records import BaselineRecord, TrialRecord, Value
from advisor.report.document import Code


def title_of(recipe_id: str, catalog: Catalog) -> str:
    """A recipe's title; its id where the catalogue has it no more."""
    recipe = catalog.recipes.get(recipe_id)
    return recipe.title if recipe else recipe_id


def settings_code(settings: dict[str, Value]) -> Code:
    """Settings as ``key: value, …``."""
    return Code(", ".join(format_setting(key, value) for key, value in settings.items()))


def memory_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    """A trial's peak memory against the baseline's."""
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def energy_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    """A trial's energy a sample against the baseline's."""
    before = baseline.result.energy_j_per_sample if baseline else None
    return format_change(record.result.energy_j_per_sample, before)
