"""A loop that torchrun starts in several processes (ranks): they join, and share the model and the batches.

Settings that name a strategy are applied here by ``prepare`` and by exported files. Without torchrun nothing changes.
"""

import collections.abc
import contextlib
import itertools
import os
import sys
import typing
import warnings

import torch

from advisor.step.loader import rebuild
from advisor.step.parallel import spread_loader, spread_model

# Batches whose samples rank 0 draws and tells the others at a time. A count.
BATCHES_TOLD = 500


def why_not_spread(strategy: str) -> str:
    """The reason why settings for several devices are not applied; empty where they are, and where there are none."""
    if strategy != "single" and uses_accelerate():
        return (
            f"parallel.strategy: {strategy} is left to Accelerate, which spreads the model itself: give the "
            "Accelerator the options, such as DistributedDataParallelKwargs(static_graph=True)"
        )
    if strategy == "data_parallel":
        short = torch.cuda.device_count() < 2
        return "parallel.strategy: data_parallel needs several GPUs, and one is visible at most" if short else ""
    if strategy == "single" or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return ""
    return (
        f"parallel.strategy: {strategy} needs a process for each GPU, and this is the only one, so the model runs on "
        "one device: start the script with `torchrun --standalone --nproc-per-node gpu SCRIPT`"
    )


def uses_accelerate() -> bool:
    """Whether there is an Accelerator in this process."""
    state: typing.Any = sys.modules.get("accelerate.state")
    return state is not None and bool(state.AcceleratorState._shared_state)


def join_ranks(model: torch.nn.Module) -> None:
    """Join the processes that torchrun started, with the model on this process's own GPU where it is on one.

    A process group that is there already stays. Raises RuntimeError where there are fewer GPUs than processes.
    """
    device = next(model.parameters()).device
    if device.type == "cuda":
        own, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if own >= count:
            raise RuntimeError(
                f"torchrun started a process for GPU {own}, and {count} are visible: start it with "
                f"--nproc-per-node {count}"
            )
        torch.cuda.set_device(own)
        model.to(torch.device("cuda", own))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")


def spread_over_ranks(model: torch.nn.Module, optimizer: typing.Any, plan: typing.Any) -> None:
    """Spread a model as the plan says, from rank 0's weights; it stays the object that it is, with its own names.

    In training its calls go through the wrapper that exchanges gradients. While it evaluates, or without gradients, it
    is called itself, for rank 0 may do that alone.
    """
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    if isinstance(model, wrappers) or hasattr(model, "set_requires_gradient_sync"):
        warnings.warn(f"parallel.strategy: {plan.strategy} is left out: the model is spread already", stacklevel=3)
        return
    if plan.strategy == "fully_shard":  # DistributedDataParallel begins with rank 0's weights itself
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            torch.distributed.broadcast(tensor.detach(), src=0)
        spread_model(model, optimizer, plan)
        return
    plain = CalledItself(model)
    spread = spread_model(plain, optimizer, plan)

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return (spread if model.training and torch.is_grad_enabled() else plain)(*args, **kwargs)

    call.spread = spread  # type: ignore[attr-defined]
    model._compiled_call_impl = call


class CalledItself(torch.nn.Module):
    """The model inside a wrapper, whose own calls do not go through the wrapper."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = model
        self._compiled = model._compiled_call_impl

    def forward(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Call the model; where it is compiled, its compiled code."""
        return (self._compiled or self._orig_mod._call_impl)(*args, **kwargs)


def over_ranks(model: typing.Any) -> typing.Any:
    """The wrapper that spreads a model, whose calls are those of a step; the model itself where it has none."""
    return getattr(getattr(model, "_compiled_call_impl", None), "spread", model)


def share_of_loader(loader: typing.Any, plan: typing.Any) -> typing.Any:
    """A copy of a loader with this rank's part of each batch; the loader itself, with a warning, where none can be.

    One with a ``DistributedSampler`` is divided already, and stays as it is.
    """
    if plan.strategy not in ("ddp", "fully_shard") or not isinstance(loader, torch.utils.data.DataLoader):
        return loader
    if hasattr(loader.sampler, "num_replicas"):
        return loader
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        if loader.batch_sampler is None:
            return spread_loader(loader, plan, rank, ranks)
        drawn_once = rebuild(loader, batch_sampler=DrawnByRankZero(loader.batch_sampler))
        return spread_loader(drawn_once, plan, rank, ranks)
    except ValueError as problem:
        warnings.warn(f"each rank reads all batches: {problem}", stacklevel=3)
        return loader


class DrawnByRankZero:
    """A batch sampler whose batches rank 0 draws for all ranks, whatever random numbers the others have.

    So each epoch is shuffled anew, alike everywhere, without a call of ``set_epoch``; a sampler that has one is told.
    All ranks have to iterate at the same time.
    """

    def __init__(self, batches: typing.Any) -> None:
        self.batches = batches

    def __iter__(self) -> collections.abc.Iterator[list[typing.Any]]:
        own = iter(self.batches) if torch.distributed.get_rank() == 0 else iter(())
        while True:
            told: list[typing.Any] = [[list(batch) for batch in itertools.islice(own, BATCHES_TOLD)]]
            torch.distributed.broadcast_object_list(told)
            yield from told[0]
            if len(told[0]) < BATCHES_TOLD:
                return

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def sampler(self) -> typing.Any:
        """The loader itself, for loops that call ``loader.sampler.set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Tell a sampler that counts them the number of the epoch."""
        with contextlib.suppress(AttributeError):
            self.batches.sampler.set_epoch(epoch)

    @property
    def batch_size(self) -> int:
        """The samples of a batch, those of all ranks together."""
        return int(self.batches.batch_size)

    @property
    def drop_last(self) -> bool:
        """Whether a last, smaller batch is left out."""
        return bool(self.batches.drop_last)
