"""The normalised workload: Loop, with every part in its final form."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, IterableDataset, default_convert

from advisor.figures.formatting import format_first
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.batch import TARGET_NAMES, ForwardInputs, splitter, tensors_of
from advisor.step.watch import objects_near
from advisor.workloads.hubs.contract import Adapted


@dataclass(slots=True)
class Loop(Adapted):
    """The user's loop before any setting: a workload with every part decided.

    ``data`` is a DataLoader or one batch; ``make_batch`` makes a batch of another size when the user gave a callable.
    With a ``step`` there is no loss apart, and the optimizer may be None; several are one that has them together.
    """

    mode: Mode = Mode.TRAIN
    batch_size: int | None = None
    make_batch: Callable[[int], Any] | None = None
    loss_text: str = ""

    def components(self, plan: StepPlan, data: Any) -> Components:
        """The parts that recipes may change; ``data`` feeds them."""
        return Components(self.model, self.optimizer, data, plan, self.batch_size, self.step)

    def to(self, place: torch.device | torch.dtype) -> None:
        """Bring the model to a device or a type, and modules that the loss is or holds: class weights, a teacher.

        State that the optimizer has already follows its parameters: Adagrad makes its sums before the first step.
        """
        for module in (self.model, *objects_near(torch.nn.Module, self.loss)):
            module.to(place)
        for state in self.optimizer.state.values() if self.optimizer is not None else ():
            for name, one in state.items():
                if isinstance(one, torch.Tensor) and one.dim():  # step counts are scalars, and stay as they are
                    state[name] = one.to(place) if one.is_floating_point() or isinstance(place, torch.device) else one

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader, if the data comes from one."""
        return self.data if isinstance(self.data, DataLoader) else None

    @property
    def spread_already(self) -> str:
        """The part that is already spread over several processes or GPUs, in words; empty if none is."""
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
    """A batch as a person reads it, for example ``float32[64, 3, 224, 224], int64[64]``."""
    texts = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(batch)]
    return format_first(texts, 6) or type(batch).__name__


def has_target(batch: Any, model: nn.Module) -> bool:
    """Whether a batch carries a target beside the model's inputs."""
    if isinstance(batch, Mapping):
        return any(name in batch for name in TARGET_NAMES)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        if any(given is batch for given in splitter(model, with_target=False)(batch).args):
            return False  # all of it is the one input
        return len(batch) > (ForwardInputs(model).count() or 1) or bool(splitter(model, with_target=True)(batch).kwargs)
    return False


class GivenBatches(DataLoader[Any]):
    """Batches that do not come from a DataLoader, so that the way they are made cannot be changed."""

    def __init__(self, begin: Callable[[], Iterable[Any]], made_by: str) -> None:
        super().__init__(_Source(begin), batch_size=None, collate_fn=as_given)
        self.made_by = made_by


class _Source(IterableDataset[Any]):
    """An iterable of batches as a dataset that is read from its beginning in each epoch."""

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.begin())


def as_given(batch: Any) -> Any:
    """A batch with tensors, unchanged, since PyTorch would turn tuples into lists. Other batches become tensors."""
    return batch if next(tensors_of(batch), None) is not None else default_convert(batch)
