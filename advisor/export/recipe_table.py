"""The README's table of recipes, made from the catalogue. ``python -m advisor.export.recipe_table README.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from advisor.errors import UsageError
from advisor.export.files import write_atomically
from advisor.files.config_file import read_text
from advisor.recipe import Recipe, WholeNumbers
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.records import Mode, text_of

BEGIN = "<!-- recipes: made by `python -m advisor.export.recipe_table README.md` -->"
END = "<!-- /recipes -->"
_COLUMNS = ("recipe", "what", "setting", "values", "loop", "device", "numerics")
_LOOPS = {Mode.TRAIN: "training", Mode.INFER: "inference"}
_DEVICES = {"cuda": "GPU", "cpu": "CPU"}


def recipe_table(catalog: Catalog) -> str:
    """Every recipe of the catalogue as the rows of a Markdown table, in the catalogue's order."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_row, catalog)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def with_table(text: str, table: str) -> str:
    """A document with the table between its two marks. Raises UsageError when it lacks them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError("there is no place for the table of recipes.", f"Put {BEGIN} and {END} on lines of their own.")
    return f"{before}{begin}\n{table}{end}{after}"


def _row(recipe: Recipe) -> Sequence[str]:
    return (
        f"`{recipe.id}`",
        recipe.title,
        f"`{recipe.key}`",
        _values(recipe),
        _joined(_LOOPS[mode] for mode in Mode if mode in recipe.modes),
        _joined(shown for device, shown in _DEVICES.items() if device in recipe.devices),
        numerics_text(recipe, _LOOPS),
    )


def _values(recipe: Recipe) -> str:
    if isinstance(recipe.values, WholeNumbers):
        return f"{recipe.values.least}, {recipe.values.least + 1}, …"
    return _joined(text_of(value) for value in recipe.values)


def numerics_text(recipe: Recipe, loops: Mapping[Mode, str]) -> str:
    """The numerics class; the class of each loop, by these names, where they differ."""
    classes = {mode: recipe.numerics_of(recipe.default, mode).value for mode in Mode if mode in recipe.modes}
    if len(set(classes.values())) == 1:
        return next(iter(classes.values()))
    return ", ".join(f"{name} ({loops[mode]})" for mode, name in classes.items())


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words)


def main(arguments: Sequence[str]) -> int:
    """Bring the table in each of these files up to date. Raises UsageError."""
    table = recipe_table(load_catalog())
    for path in arguments:
        write_atomically(path, with_table(read_text(path), table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
