"""Repeated blocks that keep their inputs only, and run again in the backward pass."""

import contextlib
import functools
import typing

import torch

from advisor.portable.blocks import repeated_blocks

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Recomputed:
    """A block's forward under an activation checkpoint. It stands in the block's own attributes.

    Running again, the block sees the buffers as they were and leaves them as they are: statistics of a batch are not
    counted twice. So the model computes the same as without, to the bit.
    """

    def __init__(self, block: torch.nn.Module) -> None:
        self.block = block
        self.buffers = [
            (module, name)
            for module in block.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        # What else than a norm's statistics the block writes to; known after the first forward pass.
        self.written = [place for place in self.buffers if not is_statistic(*place)]

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The block's result."""
        if not torch.is_grad_enabled():
            return self.run((), *args, **kwargs)
        options: dict[str, typing.Any] = {"use_reentrant": False, "preserve_rng_state": True}
        if torch.compiler.is_compiling():
            # The compiler writes to buffers once. A keyword argument could be taken for one of the checkpoint's.
            return torch.utils.checkpoint.checkpoint(functools.partial(self.run, (), **kwargs), *args, **options)
        if self.buffers:
            options["context_fn"] = self.contexts
        # By position: of other tensors' devices the states of the random generators are not kept.
        return torch.utils.checkpoint.checkpoint(self.run, tuple(kwargs), *args, *kwargs.values(), **options)

    def run(self, names: tuple[str, ...], *values: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The block's own forward; the last of the values are the arguments of these names."""
        count = len(values) - len(names)
        given = dict(zip(names, values[count:], strict=True))
        return type(self.block).forward(self.block, *values[:count], **given, **kwargs)

    def contexts(self) -> tuple[typing.Any, typing.Any]:
        """The contexts of the forward pass and of its second run."""
        saved: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
        return self.first(saved), self.again(saved)

    @contextlib.contextmanager
    def first(self, saved: list[tuple[torch.nn.Module, str, torch.Tensor]]) -> typing.Iterator[None]:
        """Inside this context a forward pass runs; what it may write to is saved before."""
        saved += [(module, name, copy_of(module, name)) for module, name in self.written]
        before = [(module, name, module._buffers[name], version_of(module, name)) for module, name in self.buffers]
        yield
        self.written = [
            (module, name)
            for module, name, buffer, version in before
            if not is_statistic(module, name)
            if module._buffers[name] is not buffer or version_of(module, name) != version
        ]

    @contextlib.contextmanager
    def again(self, saved: list[tuple[torch.nn.Module, str, torch.Tensor]]) -> typing.Iterator[None]:
        """Inside this context the block has buffers as they were before its forward pass."""
        present = [(module, name, module._buffers[name]) for module, name in self.buffers]
        copies = [(module, name, copy_of(module, name)) for module, name in self.buffers if is_statistic(module, name)]
        try:
            for module, name, buffer in [*copies, *saved]:
                module._buffers[name] = buffer
            yield
        finally:
            for module, name, current in present:
                module._buffers[name] = current


def is_statistic(module: torch.nn.Module, name: str) -> bool:
    """Whether a buffer is a norm's statistic, which training writes to and does not read."""
    return isinstance(module, torch.nn.modules.batchnorm._NormBase) and name in STATISTICS


def copy_of(module: torch.nn.Module, name: str) -> torch.Tensor:
    """A copy of a buffer."""
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer.detach().clone()


def version_of(module: torch.nn.Module, name: str) -> int:
    """The number of in-place writes to a buffer."""
    return getattr(module._buffers[name], "_version", 0)


def checkpoint_blocks(model: torch.nn.Module) -> None:
    """Put each block that the model repeats under an activation checkpoint, in place; names and state dict stay.

    A block that has a forward of its own among its attributes is left out, and so is one with forward hooks inside,
    which would run again in the backward pass. Raises ValueError for a model without blocks.
    """
    blocks = [block for group in repeated_blocks(model) for _, block in group]
    if not blocks:
        raise ValueError(f"{type(model).__name__} repeats no block whose activations could be computed again")
    for block in blocks:
        inside = [module for module in block.modules() if module is not block]
        if "forward" not in vars(block) and not any(m._forward_hooks or m._forward_pre_hooks for m in inside):
            vars(block)["forward"] = Recomputed(block)


def keep_activations(model: torch.nn.Module) -> None:
    """Take the checkpoints off again, also those of models that have a switch for their own."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), Recomputed):
            del vars(module)["forward"]
    if checkpoints_itself(model):
        typing.cast("typing.Any", model).gradient_checkpointing_disable()


def checkpoints_itself(model: torch.nn.Module) -> bool:
    """Whether a model has a switch for checkpoints, and it is on (Hugging Face's)."""
    switch = hasattr(model, "gradient_checkpointing_disable")
    return switch and any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())
