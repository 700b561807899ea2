"""Activation checkpoints: repeated blocks keep only their inputs, and run again in the backward pass."""

import contextlib
import functools
import typing

import torch


def recomputed(block: torch.nn.Module, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
    """Run a block's own forward pass under an activation checkpoint."""
    forward = functools.partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)

    def by_position(*values: typing.Any) -> typing.Any:
        return forward(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    options: dict[str, typing.Any] = {"use_reentrant": False}
    if not torch.compiler.is_compiling():  # compiled code updates the norms' statistics only once anyway
        options["context_fn"] = lambda: (contextlib.nullcontext(), StatisticsAside(block))
    # By position: checkpoint() restores random states only for the devices of its positional arguments.
    return torch.utils.checkpoint.checkpoint(by_position, *args, *kwargs.values(), **options)


class StatisticsAside:
    """A context in which a block's norms update only copies of their running statistics. It can be nested."""

    def __init__(self, block: torch.nn.Module) -> None:
        self.block = block
        self.own: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def __enter__(self) -> None:
        norms = [part for part in self.block.modules() if hasattr(part, "running_mean")]
        self.own = [(norm, *named) for norm in norms for named in norm.named_buffers(recurse=False)]
        for norm, name, buffer in self.own:
            setattr(norm, name, buffer.clone())

    def __exit__(self, *_: object) -> None:
        for norm, name, buffer in self.own:
            setattr(norm, name, buffer)


def checkpoint_blocks(blocks: typing.Iterable[torch.nn.Module]) -> None:
    """Put each block under an activation checkpoint, in place, except blocks whose ``forward`` was replaced."""
    for block in blocks:
        if "forward" not in vars(block):
            vars(block)["forward"] = functools.partial(recomputed, block)


def checkpoints_itself(model: torch.nn.Module) -> bool:
    """Whether a model's own switch for activation checkpoints is on (Hugging Face models have one)."""
    switch = hasattr(model, "gradient_checkpointing_disable")
    return switch and any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())
