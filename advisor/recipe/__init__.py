"""Recipes: their contract, which a recipe imports from here, the catalog, and the parts that several recipes share."""

from advisor.inlined.code import code_of
from advisor.recipe.contract import *
