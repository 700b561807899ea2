"""Batches padded to few lengths: a collate function that lengthens its batches as their own tails are filled."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

_RANK = 2  # of a batch of sequences of numbers
_BY_CHANCE = 2  # equal values at the end of a sample that need be no padding; a count


class PadsToMultiple:
    """A collate function whose batches of sequences have a multiple as their length: the second size of their tensors.

    The length is that of the first tensor whose samples end in padding; others of the same length, such as masks and
    labels, are padded with it, each as it was filled before. A batch that holds a tensor of this length without padding
    is left as it is. ``fills`` are the values that were seen to fill the tails, by the place of the tensor.
    """

    def __init__(self, collate: Callable[[Any], Any], multiple: int) -> None:
        self.collate = collate
        self.multiple = multiple
        self.fills: dict[int, torch.Tensor] = {}
        self.places: set[int] = set()

    def __call__(self, samples: Any) -> Any:
        """Collate the samples, and pad the batch to the next multiple of its length."""
        batch = self.collate(samples)
        tensors: list[torch.Tensor] = []
        _mapped(tensors.append, batch)
        for place, fill in self.find(tensors).items():
            first, length, *others = tensors[place].shape
            more = fill.expand(first, -length % self.multiple, *others)
            tensors[place] = torch.cat([tensors[place], more], dim=1)
        longer = iter(tensors)
        return _mapped(lambda _: next(longer), batch)

    def find(self, tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The values to pad the tensors of a batch with, by their places; empty where not all of them are known."""
        tails = {place: _tail_of(tensor) for place, tensor in enumerate(tensors)}
        self.fills = {place: value for place, value in tails.items() if value is not None} | self.fills
        if not self.fills:
            return {}
        length = tensors[min(self.fills)].shape[1]
        places = {place for place, tensor in enumerate(tensors) if tensor.ndim >= _RANK and tensor.shape[1] == length}
        self.places = self.places & places or places  # a size that is equal by chance is not in the next batch
        fills = {place: self.fills.get(place, _constant(tensors[place])) for place in self.places}
        return {} if None in fills.values() else fills  # type: ignore[return-value]


def _tail_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value that fills the tails of a batch's samples; None where they do not show one.

    It is the last one of half of the samples or more, and they end in different numbers of it.
    """
    if tensor.ndim < _RANK or not tensor.numel() or tensor.is_complex():
        return None
    last = tensor[:, -1].flatten().sort().values
    value = last[len(last) // 2]
    filled = (tensor == value).flatten(2).all(2) if tensor.ndim > _RANK else tensor == value
    tails = filled.flip(1).int().cumprod(1).sum(1)
    shown = 2 * int((tails > 0).sum()) >= len(tails) and int(tails.max()) > max(_BY_CHANCE, int(tails.min()))
    return value if shown else None


def _constant(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor that holds no other, such as the types of tokens."""
    first = tensor.flatten()[0]
    return first if bool((tensor == first).all()) else None


def _mapped(function: Callable[[torch.Tensor], Any], part: Any) -> Any:
    """A copy of a batch with each tensor replaced, depth first."""
    if isinstance(part, torch.Tensor):
        return function(part)
    if isinstance(part, Mapping):
        changed: Any = copy.copy(part)
        for key, value in part.items():
            changed[key] = _mapped(function, value)
        return changed
    if isinstance(part, list | tuple):
        inner = [_mapped(function, one) for one in part]
        return part._make(inner) if hasattr(part, "_make") else type(part)(inner)
    return part
