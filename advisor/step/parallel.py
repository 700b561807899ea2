"""A model, its optimizer and its loader spread over several processes (ranks), as the plan says.

Without a process group nothing is changed, but by ``data_parallel``, which is one process over several GPUs.
"""

import collections.abc
import contextlib
import copy
import itertools
import typing

import torch

from advisor.step.blocks import repeated_blocks
from advisor.step.capturing import capture_stream
from advisor.step.loaders import copy_with

# Steps before PowerSGD compresses: the factors that it begins with come from whole gradients. A count.
POWERSGD_FROM = 10
# Global batches whose samples are sorted by length together; their batches are then put in random order. A count.
BATCHES_IN_A_BUCKET = 50


def ranks_of_process() -> int:
    """The number of processes that train together; 1 without a process group."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def spread_model(
    model: torch.nn.Module, optimizer: typing.Any, plan: typing.Any, gpus: int | None = None
) -> torch.nn.Module:
    """Return the model wrapped by the plan's strategy; compile it before, and make steps of the result.

    ``fully_shard`` changes the model in place and gives the optimizer, which may have no state yet, the new
    parameters. ``gpus``: those of ``data_parallel``, None for all. Raises ValueError where a model or an optimizer
    cannot be wrapped.
    """
    if plan.strategy == "data_parallel":
        return torch.nn.DataParallel(model, device_ids=list(range(gpus)) if gpus else None)
    if plan.strategy == "single" or not torch.distributed.is_initialized():
        return model
    if plan.sync_batch_norm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return sharded(model, optimizer, plan) if plan.strategy == "fully_shard" else replicated(model, plan)


def replicated(model: torch.nn.Module, plan: typing.Any) -> torch.nn.Module:
    """The model in DistributedDataParallel: a replica in each rank, whose gradients are averaged in the backward."""
    device = torch.device(plan.device)
    # Newer versions warn of the first option, which older ones need, and older ones lack the second.
    options: dict[str, typing.Any] = {} if plan.broadcast_buffers else {"broadcast_buffers": False}
    if plan.batched_grad_copy:
        options["batched_grad_copy"] = True
    with gathering_stream(device) if plan.cuda_graph else contextlib.nullcontext():
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index or 0] if device.type == "cuda" else None,
            gradient_as_bucket_view=plan.gradient_as_bucket_view,
            static_graph=plan.static_graph,
            bucket_cap_mb=plan.bucket_cap_mb,
            find_unused_parameters=plan.find_unused_parameters,
            **options,
        )
    compress(wrapped, plan.comm_hook)
    return wrapped


@contextlib.contextmanager
def gathering_stream(device: torch.device) -> collections.abc.Iterator[None]:
    """Inside this context the capturing stream is the current one.

    The wrapper of a model that is captured later has to be made on it: gradients are gathered on the stream that was
    current then, and a graph holds no work of the default one. PyTorch documentation, CUDA semantics, "Usage with
    DistributedDataParallel".
    """
    stream, current = capture_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def compress(wrapped: typing.Any, name: str) -> None:
    """Have gradients sent in a smaller form."""
    if name == "none":
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=POWERSGD_FROM)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    wrapped.register_comm_hook(None, hooks[name])


def sharded(model: torch.nn.Module, optimizer: typing.Any, plan: typing.Any) -> torch.nn.Module:
    """The model with its parameters, gradients and optimizer state divided among the ranks, block by block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if optimizer is not None and optimizer.state:
        raise ValueError("the optimizer has state of whole parameters: shard the model before its first step")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    mesh = init_device_mesh(plan.device_type, (ranks_of_process(),))
    options: dict[str, typing.Any] = {"mesh": mesh, "reshard_after_forward": plan.reshard_after_forward}
    if plan.shard_precision != "none":
        half = getattr(torch, plan.shard_precision)
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    groups = [[block for _, block in group] for group in repeated_blocks(model) if plan.shard_unit == "blocks"]
    for block in itertools.chain.from_iterable(groups):
        fully_shard(block, **options)
    fully_shard(model, **options)
    for blocks in groups:
        gather_ahead(blocks, plan.shard_prefetch)
    if optimizer is not None:
        parameters = dict(model.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [parameters[names[id(parameter)]] for parameter in group["params"]]
    return model


def gather_ahead(blocks: typing.Sequence[typing.Any], count: int) -> None:
    """Have so many blocks gathered while the one before them computes, in either pass; with 0 as PyTorch has it."""
    for place, block in enumerate(blocks) if count else ():
        block.set_modules_to_forward_prefetch(list(blocks[place + 1 : place + 1 + count]))
        block.set_modules_to_backward_prefetch(list(reversed(blocks[max(0, place - count) : place])))


def synchronise_gradients(model: typing.Any, wanted: bool) -> None:
    """Have the next backward pass exchange its gradients, or keep them for a later one."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.require_backward_grad_sync = wanted
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(wanted)


def unwrapped(model: typing.Any) -> typing.Any:
    """The model inside a wrapper that has other names and another signature."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return model.module if isinstance(model, wrappers) else model


# --- batches --------------------------------------------------------------------------------------------------


class ShareOfBatches:
    """A batch sampler that gives each rank its part of every batch.

    A batch that the ranks cannot divide begins anew from its own samples, so all parts are of one size. A sampler that
    draws by PyTorch's generator draws by one of its own, seeded anew for each epoch, alike in all ranks.
    """

    def __init__(self, batches: typing.Any, rank: int, ranks: int, seed: int = 0) -> None:
        self.batches = copy.copy(batches)
        self.rank = rank
        self.ranks = ranks
        self.seed = seed
        self.epoch = 0
        self.generator = torch.Generator()
        sampler = getattr(batches, "sampler", None)
        if getattr(sampler, "generator", self) is None:
            self.batches.sampler = copy.copy(sampler)
            self.batches.sampler.generator = self.generator

    def __iter__(self) -> collections.abc.Iterator[list[typing.Any]]:
        self.begin()
        for batch in self.batches:
            yield share_of_list(list(batch), self.rank, self.ranks)

    def begin(self) -> None:
        """Begin an epoch."""
        self.generator.manual_seed(self.seed + self.epoch)
        self.epoch += 1

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def batch_size(self) -> int:
        """The samples of a rank's part."""
        return -(-int(self.batches.batch_size) // self.ranks)

    @property
    def drop_last(self) -> bool:
        """Whether a last, smaller batch is left out."""
        return bool(self.batches.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch's number, as a resumed loop does."""
        self.epoch = epoch
        with contextlib.suppress(AttributeError):
            self.batches.sampler.set_epoch(epoch)


class BalancedShares(ShareOfBatches):
    """Parts of about the same length in all, so that no rank waits for another's long samples; batches as drawn."""

    def __init__(self, batches: typing.Any, rank: int, ranks: int, seed: int = 0, *, lengths: list[int]) -> None:
        super().__init__(batches, rank, ranks, seed)
        self.lengths = lengths

    def __iter__(self) -> collections.abc.Iterator[list[typing.Any]]:
        self.begin()
        for batch in self.batches:
            yield self.dealt(list(batch))

    def dealt(self, batch: list[typing.Any]) -> list[typing.Any]:
        """This rank's part of a batch: sorted by length, neighbours go to different ranks, there and back."""
        filled = (batch * self.ranks)[: -(-len(batch) // self.ranks) * self.ranks]
        ordered = sorted(filled, key=self.lengths.__getitem__)
        rounds = [ordered[start : start + self.ranks] for start in range(0, len(ordered), self.ranks)]
        return [one[-1 - self.rank if place % 2 else self.rank] for place, one in enumerate(rounds)]


class LikeLengths(BalancedShares):
    """Batches of samples of like lengths, so that no rank waits for another's long ones.

    Samples are drawn as before; those of fifty batches are sorted by length, and their batches come in random order.
    """

    def __iter__(self) -> collections.abc.Iterator[list[typing.Any]]:
        self.begin()
        waiting: list[list[typing.Any]] = []
        for batch in self.batches:
            waiting.append(list(batch))
            if len(waiting) == BATCHES_IN_A_BUCKET:
                yield from self.shares(waiting)
                waiting = []
        yield from self.shares(waiting)

    def shares(self, waiting: list[list[typing.Any]]) -> collections.abc.Iterator[list[typing.Any]]:
        """This rank's parts of as many batches, of like lengths each."""
        samples = iter(sorted(itertools.chain.from_iterable(waiting), key=self.lengths.__getitem__))
        alike = [list(itertools.islice(samples, len(batch))) for batch in waiting]
        for place in torch.randperm(len(alike), generator=self.generator).tolist():
            yield self.dealt(alike[place])


def share_of_list(batch: list[typing.Any], rank: int, ranks: int) -> list[typing.Any]:
    """A rank's part of a batch's samples."""
    size = -(-len(batch) // ranks)
    filled = (batch * ranks)[: size * ranks]
    return filled[rank * size : (rank + 1) * size]


def share_of_tensor(tensor: torch.Tensor, samples: int, rank: int, ranks: int) -> torch.Tensor:
    """A rank's part of a tensor with an entry for each sample; any other tensor as it is."""
    if not tensor.dim() or tensor.shape[0] != samples:
        return tensor
    size = samples // ranks
    return tensor[rank * size : (rank + 1) * size].contiguous()


def spread_loader(loader: typing.Any, plan: typing.Any, rank: int, ranks: int, seed: int = 0) -> typing.Any:
    """A copy of a DataLoader that yields a rank's part of each batch, drawn alike in all ranks by the same seed.

    One rank of one draws the same batches, whole. Raises ValueError for a loader that cannot be divided.
    """
    if hasattr(loader.sampler, "num_replicas"):
        raise ValueError("the loader's sampler divides the samples among ranks already (DistributedSampler)")
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
        raise ValueError("the loader draws no batches of samples that could be divided: its dataset is iterable")
    if plan.length_bucketing or plan.balanced_shares:
        kind = LikeLengths if plan.length_bucketing else BalancedShares
        sampler = kind(loader.batch_sampler, rank, ranks, seed, lengths=lengths_in(loader))
        return copy_with(loader, batch_sampler=sampler)
    return copy_with(loader, batch_sampler=ShareOfBatches(loader.batch_sampler, rank, ranks, seed))


def lengths_in(loader: typing.Any) -> list[int]:
    """The length of each sample: ``dataset.lengths``, or of the first tensor or list in the sample, read once.

    Raises ValueError where samples have no lengths, or all the same.
    """
    known = getattr(loader.dataset, "lengths", None)
    lengths = [int(length) for length in known] if known is not None else list(map(length_of_sample, loader.dataset))
    if len(set(lengths)) < 2:
        raise ValueError("all samples have the same length")
    return lengths


def length_of_sample(sample: typing.Any) -> int:
    """The length of the first tensor, list or text in a sample; 0 where there is none."""
    if isinstance(sample, collections.abc.Mapping):
        sample = tuple(sample.values())
    if isinstance(sample, tuple) and sample:
        sample = sample[0]
    if isinstance(sample, torch.Tensor):
        return sample.shape[0] if sample.dim() else 0
    return len(sample) if hasattr(sample, "__len__") else 0
