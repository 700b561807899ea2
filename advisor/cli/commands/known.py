"""Commands that measure nothing: ``recipes`` lists them, ``hardware`` this machine, ``completion`` is for the shell."""

import shlex
import sys
from pathlib import Path

from advisor.cli.options import OPTIONS
from advisor.cli.parser import Parser, warn
from advisor.figures.formatting import MISSING, plain, printable
from advisor.recipe import BOTH_MODES, Recipe, card
from advisor.records import Mode, text_of


def run_recipes(arguments: list[str]) -> None:
    """List the recipes, or show what one does, when it helps and its numerics."""
    parser = Parser("recipes", run_recipes.__doc__)
    parser.add_argument("recipe_id", nargs="?", metavar="ID", help="the recipe to show")
    parser.add("--recipes")
    options = parser.parse(arguments)
    from advisor.recipe.catalog import load_catalog
    from advisor.report.document import pairs
    from advisor.report.terminal import body_of, print_text, table

    catalog = load_catalog(options.recipe_folders or ())
    for problem in catalog.problems:
        warn(problem)
    if options.recipe_id:
        recipe = catalog[options.recipe_id]
        more = {"default": text_of(recipe.default), "attacks": ", ".join(sorted(recipe.attacks)) or MISSING}
        print(f"{printable(card(recipe))}\n")
        print_text(body_of([pairs((facts_of(recipe) | more).items())]), sys.stdout)
        return
    made = table("id", "setting", "modes", "devices", "numerics", "title")
    for column in made.columns[:2]:
        column.no_wrap = True  # people copy ids and settings, and search for them
    for recipe in catalog:
        made.add_row(*facts_of(recipe).values(), plain(recipe.title))
    print_text(made, sys.stdout)


def facts_of(recipe: Recipe) -> dict[str, str]:
    """The cells of a recipe: its setting, where it applies, and its numerics class (by mode if the classes differ)."""
    classes = {mode: recipe.numerics_of(recipe.default, mode).value for mode in Mode if mode in recipe.modes}
    each = ", ".join(f"{name} ({mode.value})" for mode, name in classes.items())
    return {
        "id": recipe.id,
        "setting": recipe.key,
        "modes": "both" if recipe.modes == BOTH_MODES else ", ".join(sorted(recipe.modes)),
        "devices": ", ".join(sorted(recipe.devices)),
        "numerics": each if len(set(classes.values())) > 1 else next(iter(classes.values())),
    }


def run_hardware(arguments: list[str]) -> None:
    """Describe this machine: its CPU, memory and GPUs."""
    parser = Parser("hardware", run_hardware.__doc__)
    parser.add_argument("--json", action="store_true", help="as JSON, with every gauge")
    as_json = parser.parse(arguments).json
    from advisor.export.json_report import strict_json
    from advisor.machine.hardware import inspect_hardware
    from advisor.report.evidence import hardware_table
    from advisor.report.terminal import body_of, print_text

    hardware = inspect_hardware()
    if as_json:
        print(strict_json(hardware, indent=2))
    else:
        print_text(body_of([hardware_table(hardware, None)]), sys.stdout)


def run_completion(arguments: list[str]) -> None:
    """Print a script for bash that completes commands, options, recipes and sessions."""
    Parser("completion", run_completion.__doc__).parse(arguments)
    from advisor.cli.grammar import COMMANDS
    from advisor.experiment.past.journal import sessions_folder
    from advisor.recipe.catalog import load_catalog

    script = Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
    script = script.replace("@words", " ".join([*COMMANDS, *(name for name in OPTIONS if name.startswith("-"))]))
    script = script.replace("@recipes", " ".join(recipe.id for recipe in load_catalog()))
    print(script.replace("@folder", shlex.quote(str(sessions_folder()))), end="")
