"""What the catalogue proposes for facts: the values of a recipe, or the reason why there are none."""

from advisor.recipe.catalog import load_catalog

CATALOG = load_catalog()


def proposed(recipe_id, facts):
    return [candidate.value for candidate in CATALOG.propose(facts, only=[recipe_id]).candidates]


def reason(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    assert not proposals.candidates
    return proposals.skipped[recipe_id]
