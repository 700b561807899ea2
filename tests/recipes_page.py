"""The table at the end of docs/recipes.md: ``python tests/recipes_page.py`` brings it up to date."""

from pathlib import Path

from advisor.cli.commands.known import facts_of
from advisor.recipe.catalog import Catalog, load_catalog

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
HEAD = "| id | setting | what | numerics |\n| --- | --- | --- | --- |\n"


def with_table(text: str, catalog: Catalog) -> str:
    """Return the page's text with a row for each recipe in place of its table."""
    rows = (f"| `{one.id}` | `{one.key}` | {one.title} | {facts_of(one)['numerics']} |\n" for one in catalog)
    return text.partition(HEAD)[0] + HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), load_catalog()), encoding="utf-8")
