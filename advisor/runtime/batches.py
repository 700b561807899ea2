"""Batches: what the runtime knows of them beside what steps need (``portable/nested.py``, ``portable/calls.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from advisor.figures.formatting import format_first
from advisor.portable.calls import TARGET_NAMES, positional_count, splitter
from advisor.portable.nested import tensors_of


def describe(batch: Any) -> str:
    """A batch as a person reads it, for example ``float32[64, 3, 224, 224], int64[64]``."""
    texts = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(batch)]
    return format_first(texts, 6) or type(batch).__name__


def has_target(batch: Any, model: nn.Module) -> bool:
    """Whether a batch carries a target beside the model's inputs."""
    if isinstance(batch, Mapping):
        return any(name in batch for name in TARGET_NAMES)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return len(batch) > (positional_count(model) or 1) or bool(splitter(model, with_target=True)(batch).kwargs)
    return False
