"""A collate function that pads batches to few lengths, with the padding values that the batches already have."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

_RANK = 2  # the dimensions of a batch of number sequences
_BY_CHANCE = 2  # up to so many equal values at the end of a sample may be no padding
_EXAMPLES = 5  # the number of batches from which padding is learnt
_USUAL_SIZE = 32  # the size of those batches, if the loader's batch size is unknown


class PadsToMultiple:
    """A collate function that pads the sequences of a batch to a multiple of a length (the tensors' second size).

    The length is taken from the ``leading`` tensor, the first with samples that end in padding. Other tensors of that
    length (masks, labels) are padded too, each with its own padding value. A batch is not changed if the padding value
    of such a tensor is unknown. ``fills`` are the padding values, by the index of the tensor.

    A batch is never padded beyond the ``longest`` length seen while learning: a table of positions may end there.
    Values that were not learnt before the workers started are learnt by each worker from its own batches.
    """

    def __init__(self, collate: Callable[[Any], Any], multiple: int) -> None:
        self.collate = collate
        self.multiple = multiple
        self.longest = 0
        self.leading: int | None = None
        self.fills: dict[int, torch.Tensor] = {}
        self.places: set[int] = set()

    def learn(self, batches: Iterable[Any]) -> None:
        """Learn the padding values and the longest length from collated batches, once for all workers."""
        examples = list(map(_tensors_of, batches))
        for tensors in examples:
            self.find(tensors)
        self.longest = max((one[min(found)].shape[1] for one in examples if (found := self.find(one))), default=0)

    def __call__(self, samples: Any) -> Any:
        """Collate the samples, and pad the batch to the next multiple of its length."""
        batch = self.collate(samples)
        tensors = _tensors_of(batch)
        for place, fill in self.find(tensors).items():
            first, length, *others = tensors[place].shape
            wanted = length + -length % self.multiple
            wanted = min(wanted, self.longest) if length <= self.longest else wanted
            more = fill.expand(first, wanted - length, *others)
            tensors[place] = torch.cat([tensors[place], more], dim=1)
        longer = iter(tensors)
        return _mapped(lambda _: next(longer), batch)

    def find(self, tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The padding values for the tensors of a batch, by their indices; empty if one is unknown."""
        tails = ((place, _tail_of(tensor)) for place, tensor in enumerate(tensors) if _is_sequence(tensor))
        leading, padded = next(((place, tail) for place, tail in tails if tail is not None), (self.leading, None))
        if leading is None or leading >= len(tensors) or not _is_sequence(tensors[leading]):
            return {}
        self.leading, sizes = leading, tensors[leading].shape[:_RANK]
        places = {place for place, one in enumerate(tensors) if _is_sequence(one) and one.shape[:_RANK] == sizes}
        self.places = self.places & places or places  # sizes equal by chance differ in the next batch
        for place in self.places - self.fills.keys() if padded is not None else ():
            values = tensors[place][padded]
            if bool((values == values.flatten()[0]).all()):
                self.fills[place] = values.flatten()[0]
        return {place: self.fills[place] for place in self.places} if self.places <= self.fills.keys() else {}


def padding(loader: Any, multiple: int) -> PadsToMultiple:
    """Return a padding collate function for a DataLoader. It has learnt from samples of the whole dataset."""
    collate = PadsToMultiple(loader.collate_fn, multiple)
    collate.learn(_examples_of(loader))
    return collate


def copy_of(dataset: Any) -> Any:
    """Copy a dataset and its inner datasets, so that files opened at the first sample are not shared with workers."""
    copied = copy.copy(dataset)
    if hasattr(dataset, "dataset"):
        copied.dataset = copy_of(dataset.dataset)
    return copied


def _examples_of(loader: Any) -> Iterator[Any]:
    """Yield batches of samples from the whole dataset of a DataLoader, read by index in this process."""
    dataset = copy_of(loader.dataset)
    count = min(len(dataset), _EXAMPLES * (loader.batch_size or _USUAL_SIZE))
    with torch.random.fork_rng(devices=[]):
        for first in range(min(_EXAMPLES, count)):
            numbers = (place * len(dataset) // count for place in range(first, count, _EXAMPLES))
            yield loader.collate_fn([dataset[number] for number in numbers])


def _is_sequence(tensor: torch.Tensor) -> bool:
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return strided and tensor.ndim >= _RANK and tensor.numel() > 0 and not tensor.is_complex()


def _tail_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A mask of the padding in a batch; None if the batch does not show its padding.

    At least half of the samples must end in the same value, with different counts; none may hold only this value.
    """
    last = tensor[:, -1].flatten().sort().values
    value = last[len(last) // 2]
    filled = (tensor == value).flatten(2).all(2) if tensor.ndim > _RANK else tensor == value
    tail = filled.flip(1).int().cumprod(1).flip(1).bool()
    lengths = tail.sum(1)
    longest, shortest = int(lengths.max()), int(lengths.min())
    shown = 2 * int((lengths > 0).sum()) >= len(lengths) and max(_BY_CHANCE, shortest) < longest < tensor.shape[1]
    return tail if shown else None


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(found.append, batch)
    return found


def _mapped(function: Callable[[torch.Tensor], Any], part: Any) -> Any:
    """A copy of a batch with each tensor replaced by the function's result, depth first."""
    if isinstance(part, torch.Tensor):
        return function(part)
    if isinstance(part, Mapping):
        changed: Any = copy.copy(part) if hasattr(part, "__setitem__") else {}
        for key, value in part.items():
            changed[key] = _mapped(function, value)
        return changed
    if isinstance(part, list | tuple):
        inner = [_mapped(function, one) for one in part]
        return part._make(inner) if hasattr(part, "_make") else type(part)(inner)
    return part
