"""The user's loop: its parts, and functions that describe, list and resize its batches."""

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, default_convert

from advisor.errors import TargetError
from advisor.figures.formatting import format_first
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Place
from advisor.step.batch import TARGET_NAMES, ForwardInputs, attributes_with_tensors, map_tensors, splitter, tensors_of
from advisor.step.watch import objects_near
from advisor.workloads.workload import Workload

# The number of batches that are kept from an iterator, so that not all steps see the same batch.
MOST_KEPT = 32
_MOST_KEPT_BYTES = 2**30  # the size of all kept batches
_PARTS = 4  # the most tensors in a list that is one batch (inputs, targets, weights); a longer list holds batches


@dataclass(slots=True)
class Loop(Workload):
    """The user's loop before any setting, as a build, an adapter or a script returned it. ``normalise`` completes it.

    Then ``data`` is a DataLoader or one batch, and ``mode`` a Mode. ``make_batch`` is the user's callable that makes
    a batch of another size. ``usual_size`` is the default batch size. ``samples`` is the number of samples in a step
    whose batch does not show it (a batch may be an index). A loop with a ``step`` has no separate loss, and its
    optimizer may be None; several optimizers are wrapped into one.

    ``notes`` are assumptions made for the user. ``hint`` says what to do if the model cannot take a made-up batch.
    ``trainer`` is the library whose trainer runs the loop, or empty. ``places`` are the places in the user's files
    where settings can be written. ``whole_round`` is a step that lets the script run one round of its loop, on its
    ``batches``.
    """

    mode: Any = None
    batch_size: int | None = None
    make_batch: Callable[[int], Any] | None = None
    usual_size: int | None = None
    samples: int | None = None
    loss_text: str = ""
    notes: list[str] = field(default_factory=list)
    hint: str = ""
    trainer: str = ""
    places: tuple[Place, ...] = ()
    whole_round: Any = None

    def components(self, plan: StepPlan, data: Any) -> Components:
        """The parts that recipes may change, with ``data`` as the source of their batches."""
        return Components(self.model, self.optimizer, data, plan, self.batch_size, self.step)

    def to(self, place: torch.device | torch.dtype) -> None:
        """Move the model, and the modules in the loss (class weights, a teacher), to a device or a type.

        The optimizer's state is moved too: some optimizers (Adagrad) have state before the first step.
        """
        for module in (self.model, *objects_near(torch.nn.Module, self.loss)):
            module.to(place)
        for state in self.optimizer.state.values() if self.optimizer is not None else ():
            for name, one in state.items():
                if isinstance(one, torch.Tensor) and one.dim():  # scalars are step counts, which stay
                    state[name] = one.to(place) if one.is_floating_point() or isinstance(place, torch.device) else one

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader, if the data comes from one."""
        return self.data if isinstance(self.data, DataLoader) else None

    @property
    def spread_already(self) -> str:
        """The reason why the loop is already spread over processes or GPUs; empty if it is not."""
        if isinstance(self.model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            return f"the model is wrapped in {type(self.model).__name__} already"
        if hasattr(self.model, "set_requires_gradient_sync"):
            return "the model is sharded by fully_shard already"
        if hasattr(getattr(self.loader, "sampler", None), "num_replicas"):
            return "the loader has a DistributedSampler already"
        if distributed.is_available() and distributed.is_initialized():
            return "the target starts a process group itself (init_process_group)"
        return ""


def describe(batch: Any) -> str:
    """The types and shapes in a batch, for example ``float32[64, 3, 224, 224], int64[64]``."""
    texts = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(batch)]
    return format_first(texts, 6) or type(batch).__name__


def has_target(batch: Any, model: nn.Module) -> bool:
    """Whether a batch carries a target beside the model's inputs."""
    if isinstance(batch, Mapping):
        return any(name in batch for name in TARGET_NAMES)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        if any(given is batch for given in splitter(model, with_target=False)(batch).args):
            return False  # the whole tuple is the model's one input
        return len(batch) > (ForwardInputs(model).count() or 1) or bool(splitter(model, with_target=True)(batch).kwargs)
    return False


class GivenBatches(DataLoader[Any]):
    """Batches that do not come from a DataLoader, so loader settings cannot be changed."""

    def __init__(self, begin: Callable[[], Iterable[Any]], made_by: str) -> None:
        super().__init__(_Source(begin), batch_size=None, collate_fn=as_given)
        self.made_by = made_by


class _Source(IterableDataset[Any]):
    """A dataset of ready batches, which is read from its beginning in each epoch."""

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.begin())


def as_given(batch: Any) -> Any:
    """Return a batch with tensors unchanged: PyTorch would turn tuples into lists. Convert others to tensors."""
    return batch if next(tensors_of(batch), None) is not None else default_convert(batch)


def batches_in_data(data: Any, notes: list[str]) -> Any:
    """Wrap an iterable of batches into a loader. Return one batch, or a callable of a size, unchanged.

    A tuple, or a list of a few tensors, is one batch. Any other list is a list of batches. The first batches of an
    iterator are read ahead and repeated, and a note says so.
    """
    if isinstance(data, DataLoader | torch.Tensor | Mapping | str | tuple) or data is None:
        return data
    name = type(data).__name__
    if isinstance(data, list):
        return GivenBatches(lambda: data, "a list") if _are_batches(data) else data
    if isinstance(data, Iterator):
        kept = _read_ahead(data)
        notes.append(f"the {name} can be read only once: its first {len(kept)} batches are repeated")
        return GivenBatches(lambda: kept, name)
    is_array = hasattr(data, "__array__")  # the rows of an array are not batches
    of_batches = isinstance(data, Iterable) and not is_array and next(tensors_of(data), None) is None
    return GivenBatches(lambda: data, name) if of_batches else data


def _are_batches(data: list[Any]) -> bool:
    """Whether a list is a list of batches: of tuples, mappings or objects with tensors, or of many tensors."""
    tensors = all(isinstance(part, torch.Tensor) for part in data)
    parts = all(isinstance(part, tuple | Mapping) for part in data) or bool(attributes_with_tensors(data[0]))
    return next(tensors_of(data), None) is not None and (len(data) > _PARTS if tensors else parts)


def _read_ahead(iterator: Iterator[Any]) -> list[Any]:
    """The first batches of an iterator, up to the limits. Raises TargetError if it yields no batch."""
    kept, room = [], _MOST_KEPT_BYTES
    for batch in itertools.islice(iterator, MOST_KEPT):
        kept.append(batch)
        room -= sum(tensor.nbytes for tensor in tensors_of(batch)) or sys.getsizeof(batch)
        if room < 0:
            break
    if not kept:
        name = type(iterator).__name__
        raise TargetError(f"the {name} yields no batch.", "Return one that has not been read to its end.")
    return kept


def batch_size_of(batch: Any) -> int | None:
    """The first dimension of the first tensor in a batch that has dimensions; None without such a tensor."""
    return next((tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim() > 0), None)


def resize_batch(batch: Any, size: int) -> Any:
    """Repeat or cut every tensor whose first dimension is the batch size, so that the batch has ``size`` samples.

    Raises ValueError if it is unclear which dimension counts samples.
    """
    if problem := resizing_problem(batch):
        raise ValueError(problem)
    present = batch_size_of(batch) or 1

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != present or size == present:
            return tensor
        data = tensor.detach()  # clone and cat keep the memory format; an index would not
        changed = data[:size].clone() if size < present else torch.cat([data] * -(-size // present))[:size]
        return changed.requires_grad_(tensor.requires_grad)

    return map_tensors(resized, batch)


def resizing_problem(batch: Any) -> str:
    """The reason why a batch cannot be resized; empty if it can."""
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim() > 0]
    plain = [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]
    sizes = list(dict.fromkeys(tensor.shape[0] for tensor in plain))
    if not sizes or not sizes[0]:
        return "the batch has no tensor with samples, so it cannot be resized"
    if len(sizes) > 1 and sizes[1:] != [1]:  # a single row belongs to all samples
        several = ", ".join(map(str, sizes[:4]))
        return f"the batch cannot be resized: the first dimensions of its tensors differ ({several})"
    if len(plain) < len(tensors) or isinstance(batch, PackedSequence):
        return "the batch cannot be resized: its samples are packed, sparse or nested"
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    for part in parts:
        if isinstance(part, list | tuple) and len(part) == sizes[0] and not isinstance(part[0], torch.Tensor):
            return f"the batch cannot be resized: it holds a list of {sizes[0]} values that are not tensors"
    return ""


def seed_host(seed: int) -> None:
    """Seed the random generators of PyTorch, Python and NumPy: datasets, samplers and transforms use them."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
