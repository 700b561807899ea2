"""Made-up batches for models of images: what timm and torchvision share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from advisor.target.guess import noise, typed, whole_numbers, with_labels
from advisor.target.hubs.contract import Samples
from advisor.target.sizing import counted_run

_COUNTED = 2


def image_samples(model: nn.Module, shape: tuple[int, ...], *, train: bool) -> Samples:
    """Random images of one shape, with labels that fit what the model returns for them."""

    def images(size: int) -> torch.Tensor:
        return typed(noise(size, *shape), model)

    run = counted_run(model, images(_COUNTED)) if train else None
    make = with_labels(images, run[0], _COUNTED) if run else _with_classes(images, model) if train else None
    if make is None:
        return Samples(images, trains=False)
    return Samples(make, trains=True, optimizer=momentum)


def _with_classes(images: Callable[[int], torch.Tensor], model: nn.Module) -> Callable[[int], Any] | None:
    """Images with a class each, for a model that says how many it has."""
    classes = getattr(model, "num_classes", None)
    if not isinstance(classes, int) or classes < 1:
        return None
    return lambda size: (images(size), whole_numbers(classes, size))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """The usual optimizer of models of images."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
