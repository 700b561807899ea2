"""Recipes: all that a recipe imports from here: their contract, what several share, and the records they speak of."""

from advisor.inlined.code import code_of
from advisor.recipe.contract import *
from advisor.recipe.loader_recipe import NO_LOADER, Expression, LoaderRecipe
from advisor.recipe.parallel_recipe import ParallelRecipe, why_not_sharded
from advisor.records import Bottleneck, Facts, LoaderFacts, Mode, Numerics, Phase, Proposal, Skip, Value, Values
