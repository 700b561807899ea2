"""Made-up tensors, the same in every trial, and labels that fit what a model returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from advisor.portable.losses import main_output


def generator_for(*shape: int) -> torch.Generator:
    """A generator whose seed depends only on a shape, so that every trial sees the same batch."""
    return torch.Generator().manual_seed(sum((index + 1) * size for index, size in enumerate(shape)))


def noise(*shape: int) -> torch.Tensor:
    """Normally distributed numbers: images and sound after their normalisation."""
    return torch.randn(*shape, generator=generator_for(*shape))


def whole_numbers(below: int, *shape: int, at_least: int = 0) -> torch.Tensor:
    """Whole numbers from ``at_least`` up to ``below``, evenly distributed: token ids and labels."""
    low = at_least if at_least < below else 0
    return torch.randint(low, max(below, low + 1), shape, generator=generator_for(*shape, below))


def with_labels(inputs: Callable[[int], Any], output: Any, size: int) -> Callable[[int], Any] | None:
    """Batches ``(*inputs, labels)``, with labels that fit the ``output`` of a model on ``size`` samples.

    A class per sample, or per pixel or position where the output has a score for each. None for another output.
    """
    try:
        scores = main_output(output)
    except TypeError:
        return None
    if scores.dim() < 2 or scores.shape[0] != size or 0 in scores.shape:
        return None
    classes, rest = scores.shape[1], scores.shape[2:]

    def make(size: int) -> tuple[Any, ...]:
        made = inputs(size)
        return (*(made if isinstance(made, tuple) else (made,)), whole_numbers(classes, size, *rest))

    return make


def typed(tensor: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """An input in the model's own floating-point type."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return tensor.to(own) if tensor.is_floating_point() else tensor


def shape_text(shape: Sequence[int]) -> str:
    """A shape as it stands on the command line: ``64x3x224x224``."""
    return "x".join(map(str, shape))
