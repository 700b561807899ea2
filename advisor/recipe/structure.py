"""The structure of a model: the blocks that it repeats. torch is imported only when a function runs.

Recipes that treat a model block by block (regional compilation, activation checkpointing) share this view of it; its
code for exported files is ``portable.source("blocks")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def repeated_blocks(model: nn.Module) -> list[list[tuple[str, nn.Module]]]:
    """The blocks that a model repeats, as groups of (qualified name, module); the group with most parameters first.

    A block is a module with parameters and modules of its own that stands in a Sequential, ModuleList or ModuleDict
    beside another of its class. Of nested ones the outer count, as long as two of them are alike to the shapes of
    their parameters: so the layers of a transformer are found rather than its stages or its experts.
    """
    from advisor.portable import blocks

    return blocks.repeated_blocks(model)


def block_counts(model: nn.Module) -> tuple[tuple[str, int], ...]:
    """Class name and number of the blocks that a model repeats, in the order of :func:`repeated_blocks`."""
    return tuple((type(group[0][1]).__name__, len(group)) for group in repeated_blocks(model))
