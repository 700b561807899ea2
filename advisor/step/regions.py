"""Repeated blocks, compiled in place of the whole model."""

import typing

import torch

from advisor.step.blocks import blocks_to_compile
from advisor.step.compiled_module import compile_in_place


def compile_blocks(model: torch.nn.Module, **options: typing.Any) -> None:
    """Compile blocks that the model repeats, in place. Blocks that are alike are compiled once.

    ``options`` are those of torch.compile. Raises ValueError for a model that repeats none.
    """
    blocks = blocks_to_compile(model)
    if not blocks:
        raise ValueError("the model repeats no block that could be compiled by itself")
    # Blocks of one class share a cache, and those of other shapes each need a place in it.
    config: typing.Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(blocks))
    for block in blocks:
        compile_in_place(block, is_block=True, **options)
