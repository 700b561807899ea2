"""Recipes: all that a recipe imports from here: their contract, what several share, and the records they speak of."""

from advisor.inlined.code import code_of
from advisor.recipe.bases import *
from advisor.recipe.contract import *
from advisor.records import Bottleneck, Facts, LoaderFacts, Mode, Numerics, Phase, Proposal, Skip, Value, Values
