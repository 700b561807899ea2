"""torchvision models as workloads: input shapes and classes from the metadata of their weights, no download."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.target.workload import Workload

DEFAULT_BATCH_SIZE = 32
_CLIP_FRAMES = 16
_DEFAULT_CROP = 224
_DEFAULT_CLASSES = 1000


def adapt(module_name: str, attribute: str, value: Any, spec: TargetSpec) -> Any:
    """A bare torchvision classification, segmentation or video model as a Workload with synthetic batches.

    Other values are returned unchanged. Raises TargetError for torchvision models with other kinds of targets.
    """
    if not (module_name == "torchvision.models" or module_name.startswith("torchvision.models.")):
        return value
    if not isinstance(value, nn.Module):
        return value
    kind = type(value).__module__.removeprefix("torchvision.models").strip(".").partition(".")[0]
    if kind in ("detection", "optical_flow") and spec.mode is not Mode.INFER:
        kind_text = "a detection" if kind == "detection" else "an optical flow"
        raise TargetError(
            f"{attribute} is {kind_text} model, whose training targets cannot be made up.",
            "Return (model, loader, loss, optimizer) from a build() of your own, or give --mode infer.",
        )
    if kind in ("detection", "optical_flow"):
        return value
    shape = _input_shape(attribute, kind, spec)
    classes = _classes(attribute)

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(spec_seed(shape))
        images = torch.randn(size, *shape, generator=generator)
        labels_shape = (size, *shape[-2:]) if kind == "segmentation" else (size,)
        return images, torch.randint(classes, labels_shape, generator=generator)

    workload = Workload(model=value, data=batch, mode=spec.mode.value if spec.mode else Mode.TRAIN.value)
    if workload.mode == Mode.TRAIN.value:
        workload.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    return workload


def offline_options(module_name: str, parameters: Iterable[str]) -> dict[str, Any]:
    """Arguments that keep a torchvision builder from downloading: some load a pretrained backbone unasked."""
    is_torchvision = module_name == "torchvision.models" or module_name.startswith("torchvision.models.")
    return {"weights_backbone": None} if is_torchvision and "weights_backbone" in parameters else {}


def spec_seed(shape: tuple[int, ...]) -> int:
    """A seed that depends only on the shape, so that every trial sees the same synthetic batch."""
    return sum((index + 1) * size for index, size in enumerate(shape))


def _input_shape(name: str, kind: str, spec: TargetSpec) -> tuple[int, ...]:
    """One sample's shape: from ``--input`` (less its batch dimension), else from the weights' own preprocessing."""
    if spec.input_shape is not None:
        return spec.input_shape[1:]
    crop = _preprocessing(name).get("crop_size", _DEFAULT_CROP)
    height, width = (crop[0], crop[-1]) if isinstance(crop, list | tuple) else (crop, crop)
    return (3, _CLIP_FRAMES, height, width) if kind == "video" else (3, height, width)


def _preprocessing(name: str) -> dict[str, Any]:
    weights = _default_weights(name)
    keywords = getattr(weights.transforms, "keywords", {}) if weights is not None else {}
    return dict(keywords)


def _classes(name: str) -> int:
    weights = _default_weights(name)
    return len(weights.meta.get("categories", ())) or _DEFAULT_CLASSES if weights is not None else _DEFAULT_CLASSES


def _default_weights(name: str) -> Any:
    from torchvision import models

    try:
        return next(iter(models.get_model_weights(name)), None)
    except ValueError:
        return None
