"""Training on several GPUs: spread a model, its optimizer and its loader over the processes (ranks) of a group."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from advisor.errors import RefusedError
from advisor.inlined.blocks import repeated_blocks
from advisor.recipe.plan import StepPlan
from advisor.step.compile import unwrapped
from advisor.step.cuda_graph import capture_stream
from advisor.step.loader import length_of, rebuild

# The number of global batches whose samples are sorted by length together, before the batches are shuffled.
BATCHES_IN_A_BUCKET = 50


def spread_model(model: nn.Module, optimizer: Any, plan: StepPlan) -> nn.Module:
    """Return the model wrapped by the plan's strategy. Compile the model before this call, and make steps after it.

    All ranks begin with the weights of rank 0. ``fully_shard`` changes the model in place and gives the optimizer the
    new parameters. It raises RefusedError if the optimizer has made steps. Without a process group nothing changes.
    """
    if plan.strategy == "single" or not distributed.is_initialized():
        return model
    if plan.strategy == "fully_shard":
        return _sharded(model, optimizer, plan)
    device = torch.device(plan.device)
    # The wrapper gathers gradients on the stream that made it. A graph cannot hold work of the default stream.
    # See PyTorch's documentation: CUDA semantics, "Usage with DistributedDataParallel".
    if plan.cuda_graph:
        torch.cuda.synchronize(device)
    with torch.cuda.stream(capture_stream(device)) if plan.cuda_graph else nullcontext():
        own_gpu = [device.index or 0] if device.type == "cuda" else None
        options = ("gradient_as_bucket_view", "bucket_cap_mb", "find_unused_parameters")
        wrapped = DistributedDataParallel(model, own_gpu, **{name: getattr(plan, name) for name in options})
    if plan.cuda_graph:
        torch.cuda.synchronize(device)
    return wrapped


def _sharded(model: nn.Module, optimizer: Any, plan: StepPlan) -> nn.Module:
    """Divide a model's parameters, gradients and optimizer state among the ranks, block by block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if optimizer is not None and optimizer.state:
        raise RefusedError("the optimizer already has state: shard the model before the first step")
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        distributed.broadcast(tensor.detach(), src=0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    mesh = init_device_mesh(plan.device_type, (distributed.get_world_size(),))
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": plan.reshard_after_forward}
    repeated = repeated_blocks(model) if plan.shard_unit == "blocks" else []
    for _, block in itertools.chain.from_iterable(repeated):
        fully_shard(block, **options)
    fully_shard(model, **options)
    if optimizer is not None:
        parameters = dict(model.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [parameters[names[parameter]] for parameter in group["params"]]
    return model


def synchronise_gradients(model: Any, wanted: bool) -> None:
    """Make the next backward pass exchange its gradients, or keep them for a later exchange."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = wanted
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(wanted)


class ShareOfBatches:
    """A batch sampler that gives each rank its part of every batch.

    A batch that cannot be divided equally is filled up with its own first samples, so that all parts have the same
    size. Rank 0 draws a seed for each epoch, so all ranks must iterate at the same time. A sampler that draws from
    PyTorch's generator uses this seed, as in one process. Other samplers must draw the same in all ranks.

    With ``lengths`` of all samples, each batch has samples of similar lengths: the samples of fifty batches are sorted
    and split into batches in random order. Neighbours go to different ranks, so that no rank has only long samples.
    """

    def __init__(self, batches: Any, rank: int, ranks: int, lengths: list[int] | None = None) -> None:
        self.batches = copy.copy(batches)
        self.rank = rank
        self.ranks = ranks
        self.lengths = lengths
        self.generator = torch.Generator()
        sampler = getattr(batches, "sampler", None)
        if getattr(sampler, "generator", self) is None:
            self.batches.sampler = copy.copy(sampler)
            self.batches.sampler.generator = self.generator

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Any]]:
        seed = [int(torch.empty((), dtype=torch.int64).random_())]  # like PyTorch's samplers
        if self.ranks > 1 and distributed.is_initialized():
            distributed.broadcast_object_list(seed)
        self.generator.manual_seed(seed[0])
        drawn = map(list, self.batches)
        for batch in drawn if self.lengths is None else self.of_like_lengths(drawn, self.lengths):
            size = -(-len(batch) // self.ranks)
            yield (batch * self.ranks)[self.rank * size : (self.rank + 1) * size]

    def of_like_lengths(self, drawn: Iterator[list[Any]], lengths: list[int]) -> Iterator[list[Any]]:
        """Yield batches of samples with similar lengths, ordered so that each rank's part has all lengths."""
        while bucket := list(itertools.islice(drawn, BATCHES_IN_A_BUCKET)):
            samples = iter(sorted(itertools.chain.from_iterable(bucket), key=lengths.__getitem__))
            alike = [list(itertools.islice(samples, len(batch))) for batch in bucket]
            for place in torch.randperm(len(alike), generator=self.generator).tolist():
                whole = (alike[place] * self.ranks)[: -(-len(alike[place]) // self.ranks) * self.ranks]
                yield [sample for rank in range(self.ranks) for sample in whole[rank :: self.ranks]]


def spread_loader(loader: Any, plan: StepPlan, rank: int, ranks: int) -> Any:
    """Return a copy of a DataLoader that yields a rank's part of each batch.

    With one rank it yields whole batches. Raises RefusedError for a loader that cannot be divided.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise RefusedError("the loader's batches cannot be divided: its dataset is iterable, or it forms no batches")
    lengths = _lengths_in(loader) if plan.length_bucketing else None
    return rebuild(loader, batch_sampler=ShareOfBatches(loader.batch_sampler, rank, ranks, lengths))


def _lengths_in(loader: Any) -> list[int]:
    """Return each sample's length: from ``dataset.lengths``, or else by reading the first part of each sample once.

    Raises RefusedError if samples have no length, or all the same length.
    """
    known = getattr(loader.dataset, "lengths", None)
    lengths = list(map(int, known)) if known is not None else []
    for sample in loader.dataset if known is None else ():
        first: Any = next(iter(sample.values()), 0) if isinstance(sample, Mapping) else sample
        first = first[0] if isinstance(first, tuple) and first else first
        lengths.append(length_of(first) or 0)  # none of a number, or a tensor of one
    if len(set(lengths)) < 2:
        raise RefusedError("all samples have the same length")
    return lengths


# --- a loop of the user's own, under torchrun -------------------------------------------------------------------------


def why_not_spread(strategy: str, model: nn.Module) -> str:
    """Return the reason why settings for several GPUs are not applied; empty if they are, or if there are none."""
    if strategy == "single":
        return ""
    if unwrapped(model) is not model or hasattr(model, "set_requires_gradient_sync"):
        return f"parallel.strategy: {strategy} is left out: the model is already spread"
    if uses_accelerate():
        return f"parallel.strategy: {strategy} is left to Accelerate: give the options to its Accelerator"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return ""
    return (
        f"parallel.strategy: {strategy} needs one process per GPU, but there is only this process: the model runs on "
        "one GPU. Start the script with `torchrun --standalone --nproc-per-node gpu SCRIPT`"
    )


def uses_accelerate() -> bool:
    """Whether this process has an Accelerator."""
    state: Any = sys.modules.get("accelerate.state")
    return state is not None and bool(state.is_initialized())


def join_ranks(model: nn.Module) -> None:
    """Join the processes that torchrun started. A model on a GPU is moved to the GPU of this process.

    An existing process group is kept.
    """
    on_cuda = next(model.parameters()).is_cuda
    if on_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        model.cuda()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if on_cuda else "gloo")


def share_of_loader(loader: Any, plan: StepPlan) -> Any:
    """Return a copy of a loader with this rank's part of each batch. If this fails, warn and return the loader itself.

    A loader with a ``DistributedSampler`` is already divided, and is returned unchanged.
    """
    if plan.strategy == "single" or hasattr(loader.sampler, "num_replicas"):
        return loader
    try:
        return spread_loader(loader, plan, distributed.get_rank(), distributed.get_world_size())
    except RefusedError as problem:
        warnings.warn(f"each rank reads all batches: {problem}", stacklevel=3)
        return loader
