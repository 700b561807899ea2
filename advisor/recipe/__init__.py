"""All names that a recipe needs from this project: the contract, shared base classes, and records."""

from advisor.inlined.code import code_of
from advisor.recipe.bases import *
from advisor.recipe.contract import *
from advisor.records import Bottleneck, Facts, LoaderFacts, Mode, Numerics, Phase, Proposal, Skip, Value, Values
