"""Repeated blocks, compiled in place of the whole model."""

import typing

import torch

from advisor.portable.blocks import repeated_blocks


def compile_blocks(model: torch.nn.Module, **options: typing.Any) -> None:
    """Compile each block that the model repeats, in place. Blocks that are alike are compiled once.

    ``options`` are those of torch.compile. Raises ValueError for a model that repeats none.
    """
    blocks = [block for group in repeated_blocks(model) for _, block in group]
    if not blocks:
        raise ValueError("the model repeats no block that could be compiled by itself")
    # Blocks of one class share a cache, and those of other shapes each need a place in it.
    config: typing.Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(blocks))
    for block in blocks:
        compile_in_place(block, **options)


def compile_in_place(block: torch.nn.Module, **options: typing.Any) -> None:
    """Compile a module and keep its identity and the names of its parameters."""
    if not type(block).forward.__module__.startswith("torch.nn."):
        block.compile(**options)
        return

    # block.compile() would do nothing here: Dynamo skips PyTorch's own frames unless they are called from another.
    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return block._call_impl(*args, **kwargs)

    block._compiled_call_impl = torch.compile(call, **options)
