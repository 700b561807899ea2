"""A collate function that removes attention masks without effect. It checks each batch."""

import copy
import functools
from collections.abc import Callable, MutableMapping
from typing import Any

import torch


def masks_nothing(name: Any, part: Any) -> bool:
    """Whether a part of a batch is a mask without effect: attention all 1, or padding or added values all 0."""
    is_plain = isinstance(part, torch.Tensor) and part.layout is torch.strided and not part.is_nested
    if not is_plain or not str(name).endswith(("attention_mask", "attn_mask", "padding_mask")):
        return False
    is_added = part.is_floating_point() and (part.dim() > 2 or name.endswith("attn_mask"))
    return bool((part == (0 if is_added or name.endswith("padding_mask") else 1)).all())


def without_empty_masks(batch: Any) -> Any:
    """Remove masks without effect from a batch. Masks are entries of mappings, which may be in lists and tuples."""
    if type(batch) in (list, tuple):
        return type(batch)(map(without_empty_masks, batch))
    named = batch.items() if isinstance(batch, MutableMapping) else ()
    empty = [name for name, part in named if masks_nothing(name, part)]
    kept = copy.copy(batch) if empty else batch
    for name in empty:
        del kept[name]
    return kept


def dropping_masks(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A collate function that also removes masks without effect. It can be pickled for workers."""
    return functools.partial(_collated, collate)


def _collated(collate: Callable[[Any], Any], samples: Any) -> Any:
    return without_empty_masks(collate(samples))
