"""``perf-advisor recipes``: the recipes in a list, or the card of one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.formatting import MISSING, plain, printable
from advisor.recipe import BOTH_MODES, Recipe, card
from advisor.records import Mode, text_of

if TYPE_CHECKING:
    from advisor.recipe.catalog import Catalog


def run(arguments: Sequence[str]) -> int:
    """List the recipes, or show the card of one. Raises UsageError for an id that no recipe has."""
    parser = Parser("perf-advisor recipes", "List the recipes, or show what one does, when it helps and its numerics.")
    parser.add_argument("recipe_id", nargs="?", metavar="ID", help="the recipe to show")
    parser.add("--recipes")
    options = parser.parse(arguments)
    from advisor.recipe.catalog import load_catalog

    catalog = load_catalog(tuple(options.recipes))
    for problem in catalog.problems:
        print(f"warning: {plain(problem)}", file=sys.stderr)
    if options.recipe_id is None:
        _list_recipes(catalog)
    else:
        _show_recipe(catalog[options.recipe_id])
    return ExitCode.OK


def _list_recipes(catalog: Catalog) -> None:
    from advisor.report.terminal import print_text, table

    made = table("id", "key", "modes", "devices", "numerics", "title")
    for column in made.columns[:2]:
        column.no_wrap = True  # they are copied, and searched for
    for recipe in catalog:
        shown = _modes(recipe), _devices(recipe), numerics_text(recipe), plain(recipe.title)
        made.add_row(recipe.id, recipe.key, *shown)
    print_text(made, sys.stdout)


def _show_recipe(recipe: Recipe) -> None:
    from advisor.report.document import pairs
    from advisor.report.terminal import body_of, print_text

    facts = {
        "id": recipe.id,
        "setting": recipe.key,
        "default": text_of(recipe.default),
        "modes": _modes(recipe),
        "devices": _devices(recipe),
        "numerics": numerics_text(recipe),
        "attacks": ", ".join(sorted(recipe.attacks)) or MISSING,
    }
    print(printable(card(recipe)))
    print()
    print_text(body_of([pairs(facts.items())]), sys.stdout)


def _modes(recipe: Recipe) -> str:
    return "both" if recipe.modes == BOTH_MODES else ", ".join(sorted(recipe.modes))


def _devices(recipe: Recipe) -> str:
    return ", ".join(sorted(recipe.devices))


def numerics_text(recipe: Recipe) -> str:
    """The numerics class; the class of each mode where they differ."""
    classes = {mode: recipe.numerics_of(recipe.default, mode).value for mode in Mode if mode in recipe.modes}
    if len(set(classes.values())) == 1:
        return next(iter(classes.values()))
    return ", ".join(f"{name} ({mode.value})" for mode, name in classes.items())
