"""Made-up batches for models of images: what timm and torchvision share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from advisor.target.hubs.contract import Samples
from advisor.target.made_up import noise, typed, with_labels
from advisor.target.sizing import counted_run

_COUNTED = 2


def image_samples(model: nn.Module, shape: tuple[int, ...], *, train: bool, notes: tuple[str, ...] = ()) -> Samples:
    """Random images of one shape, with labels that fit what the model returns for them."""

    def images(size: int) -> torch.Tensor:
        return typed(noise(size, *shape), model)

    run = counted_run(model, images(_COUNTED)) if train else None
    make = with_labels(images, run[0], _COUNTED) if run else None
    if make is None:
        return Samples(images, trains=False, notes=notes)
    return Samples(make, trains=True, optimizer=momentum, notes=notes)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """The usual optimizer of models of images."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
