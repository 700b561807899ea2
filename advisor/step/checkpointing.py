"""Repeated blocks that keep their inputs only, and run again in the backward pass."""

import contextlib
import functools
import typing

import torch

from advisor.step.blocks import repeated_blocks
from advisor.step.host_draws import HostDraws
from advisor.step.python_state import PythonState
from advisor.step.stand_in import StandInForward

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Recomputed(StandInForward):
    """A block's forward under an activation checkpoint. It stands in the block's own attributes.

    Running again, the block sees buffers, Python attributes, modes and the host's random numbers as they were, and
    leaves them as they are: statistics of a batch, a count or a list are not added to twice. So the model computes the
    same as without, to the bit. With forward hooks inside, which would be called again, the block runs as it is.
    """

    def __init__(self, block: torch.nn.Module) -> None:
        self.module = block
        # Buffers that the block's last forward pass did not write to: they need no copy.
        self.only_read: set[tuple[torch.nn.Module, str]] = set()

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The block's result."""
        if not torch.is_grad_enabled():
            return self.run((), *args, **kwargs)
        options: dict[str, typing.Any] = {"use_reentrant": False, "preserve_rng_state": True}
        if torch.compiler.is_compiling():
            # A keyword argument could be taken for one of the checkpoint's.
            call = functools.partial(self.run_compiled, [], **kwargs)
            return torch.utils.checkpoint.checkpoint(call, *args, **options)
        # The transforms of torch.func know no checkpoints.
        in_func = torch._C._functorch.peek_interpreter_stack() is not None
        if in_func or has_hooks_inside(self.module):
            return self.run((), *args, **kwargs)
        options["context_fn"] = self.contexts
        # By position: of other tensors' devices the states of the random generators are not kept.
        return torch.utils.checkpoint.checkpoint(self.run, tuple(kwargs), *args, *kwargs.values(), **options)

    def run(self, names: tuple[str, ...], *values: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Call the block's own forward; the last of the values are its keyword arguments, in the order of ``names``."""
        count = len(values) - len(names)
        given = dict(zip(names, values[count:], strict=True))
        return type(self.module).forward(self.module, *values[:count], **given, **kwargs)

    def run_compiled(self, found: list["Before"], *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The block's own forward where the compiler traces the checkpoint: it has buffers written to once.

        A checkpoint that it cannot trace as a whole runs uncompiled: as elsewhere, with what the block ``found``.
        """
        if torch.compiler.is_compiling():
            return self.run((), *args, **kwargs)
        first = not found
        if first:
            found.append(Before(self.module, self.only_read))
        with found[0].first(self.only_read) if first else found[0].again():
            return self.run((), *args, **kwargs)

    def contexts(self) -> tuple[typing.Any, typing.Any]:
        """The contexts of the forward pass and of its second runs, one for each backward pass."""
        before = Before(self.module, self.only_read)
        return before.first(self.only_read), Each(before.again)


class Each:
    """A context that can be entered several times: each time it is a new one."""

    def __init__(self, make: typing.Callable[[], typing.Any]) -> None:
        self.make = make
        self.entered: list[typing.Any] = []

    def __enter__(self) -> typing.Any:
        self.entered.append(self.make())
        return self.entered[-1].__enter__()

    def __exit__(self, *raised: typing.Any) -> typing.Any:
        return self.entered.pop().__exit__(*raised)


class Before:
    """The state of a block before its forward pass, for the second pass to start from."""

    def __init__(self, block: torch.nn.Module, only_read: set[tuple[torch.nn.Module, str]]) -> None:
        self.modules = list(block.modules())
        self.buffers = [
            (module, name) for module in self.modules for name, buffer in module._buffers.items() if buffer is not None
        ]
        saved = [place for place in self.buffers if not is_statistic(*place) and place not in only_read]
        self.copies = [(*place, copy_of(*place)) for place in saved]
        self.attributes = PythonState(self.modules)
        self.draws: HostDraws | None = HostDraws()

    @contextlib.contextmanager
    def first(self, only_read: set[tuple[torch.nn.Module, str]]) -> typing.Iterator[None]:
        """Inside this context the forward pass runs. Afterwards ``only_read`` has the buffers that it left alone."""
        before = [(module, name, module._buffers[name], version_of(module, name)) for module, name in self.buffers]
        yield
        only_read.clear()
        for module, name, buffer, version in before:
            if module._buffers.get(name) is buffer and version_of(module, name) == version:
                only_read.add((module, name))
        if self.draws == HostDraws():
            self.draws = None  # it drew nothing

    @contextlib.contextmanager
    def again(self) -> typing.Iterator[None]:
        """Inside this context all is as it was before the forward pass, and afterwards as it is now."""
        present, draws = PythonState(self.modules), HostDraws() if self.draws is not None else None
        statistics = [
            (module, name, copy_of(module, name)) for module, name in self.buffers if is_statistic(module, name)
        ]
        try:
            self.attributes.put_back()
            for module, name, buffer in [*statistics, *self.copies]:
                module._buffers[name] = buffer.clone()
            if self.draws is not None:
                self.draws.put_back()
            yield
        finally:
            present.put_back()
            if draws is not None:
                draws.put_back()


def has_hooks_inside(block: torch.nn.Module) -> bool:
    """Whether a part of a block has forward hooks, or all modules have."""
    parts = (module for module in block.modules() if module is not block)
    return bool(
        any(module._forward_hooks or module._forward_pre_hooks for module in parts)
        or torch.nn.modules.module._global_forward_hooks
        or torch.nn.modules.module._global_forward_pre_hooks
    )


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
        if "forward" not in vars(block) and not has_hooks_inside(block):
            vars(block)["forward"] = Recomputed(block)


def keep_activations(model: torch.nn.Module) -> None:
    """Switch checkpointing off again, including a model's own."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), Recomputed):
            del vars(module)["forward"]
    if checkpoints_itself(model):
        typing.cast("typing.Any", model).gradient_checkpointing_disable()


def checkpoints_itself(model: torch.nn.Module) -> bool:
    """Whether a model has a switch for checkpoints, and it is on (Hugging Face's)."""
    switch = hasattr(model, "gradient_checkpointing_disable")
    return switch and any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())
