"""The table of recipes and a page for each. ``python tests/recipe_pages.py docs/recipes.md docs/recipes``."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from advisor.cli.commands.recipes import numerics_text
from advisor.errors import UsageError
from advisor.export.files import write_atomically
from advisor.files.config_file import read_text
from advisor.recipe import Recipe, WholeNumbers, card
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.records import Mode, text_of

BEGIN = "<!-- recipes: made by `python tests/recipe_pages.py docs/recipes.md docs/recipes` -->"
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
        f"[`{recipe.id}`](recipes/{recipe.id}.md)",
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


def recipe_page(recipe: Recipe) -> str:
    """A recipe's card as a page, with its facts and how to try it alone."""
    _, _, text = card(recipe).partition("\n")
    facts = dict(zip(_COLUMNS, _row(recipe), strict=True))
    rows = [f"| {name} | {facts[name]} |" for name in _COLUMNS[2:]]
    table = "\n".join(["| | |", "| --- | --- |", *rows, f"| default | `{text_of(recipe.default)}` |"])
    return (
        f"# {recipe.title}\n\n{table}\n\n{text.strip()}\n\nTry it alone\n------------\n\n"
        f"```bash\nperf-advisor mymodel:build --only {recipe.id}\n```\n\n[All recipes](../recipes.md)\n"
    )


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words)


def main(arguments: Sequence[str]) -> int:
    """Bring the table in each of these files, and the pages in each folder, up to date. Raises UsageError."""
    catalog = load_catalog()
    for path in arguments:
        if not path.endswith(".md"):
            write_pages(Path(path), catalog)
        else:
            write_atomically(path, with_table(read_text(path), recipe_table(catalog)))
    return 0


def write_pages(folder: Path, catalog: Catalog) -> None:
    """Write a page for each recipe, and remove those of recipes that are gone. Raises UsageError."""
    folder.mkdir(exist_ok=True)
    for page in folder.glob("*.md"):
        if page.stem not in catalog.recipes:
            page.unlink()
    for recipe in catalog:
        write_atomically(str(folder / f"{recipe.id}.md"), recipe_page(recipe))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
