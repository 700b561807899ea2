"""torchvision's models: shapes from the metadata of their weights, nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from advisor.records import TargetSpec
from advisor.target.guess import image_samples, momentum, noise, whole_numbers
from advisor.target.hubs.contract import Adapter, Samples, built, check_input, check_options, options_of, unknown_name
from advisor.target.sizing import refuses

_CLIP_FRAMES = 16
_USUAL_SIZE = 224
# Sides of images and of clips for a machine on which the usual ones take too long: pixels.
_SMALLER_SIDES = {"segmentation": (_USUAL_SIZE,), "video": (112,), "detection": (320,)}
_TRIED = 2  # samples of a batch by which a size is tried
# Boxes in each made-up image.
_BOXES = 4
# Size of an image pair for optical flow: the crop that RAFT is trained on, and the smallest that it takes.
_FLOW_SIZES = ((368, 496), (128, 128))
# Weight of an iteration's flow relative to the next one's, as in RAFT's training.
_FLOW_DECAY = 0.8


class Torchvision(Adapter):
    """``torchvision:NAME``, and models of its classes."""

    order = 70
    prefix = package = "torchvision"
    aliases = ("tv",)
    example = "torchvision:resnet50"

    @staticmethod
    def builds(module: str, attribute: str) -> bool:
        """Whether ``module:attribute`` names one of torchvision's builders, as ``torchvision.models:resnet50`` does."""
        if module != "torchvision.models" and not module.startswith("torchvision.models."):
            return False
        from torchvision import models

        return attribute in models.list_models()

    def load(self, name: str, spec: TargetSpec) -> nn.Module:
        models = self.imported(".models")
        try:
            build = models.get_model_builder(name)
        except ValueError:
            raise unknown_name(name, "torchvision", models.list_models()) from None
        options = options_of(spec)
        check_options(name, options, build)
        taken = inspect.signature(build).parameters
        usual = {*taken, "num_classes", "dropout", "norm_layer"} - {"weights", "kwargs"}
        # Some builders load a pretrained backbone unasked.
        offline = {"weights_backbone": None} if "weights_backbone" in taken else {}
        return built(name, options, build, usual, weights=None, **offline)

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Samples | None:
        room, _, rest = type(model).__module__.partition(".models.")
        if room != "torchvision":
            return None
        kind = rest.partition(".")[0]
        check_input(spec, *((5, "2x3x16x112x112") if kind == "video" else (4, "8x3x224x224")))
        train = train and model.training
        if kind == "detection":
            first = _detection(model, _detected_shape(model, spec), train=train)
            return replace(first, shorter=tuple(_smaller_detection(model, spec, train=train)))
        if kind == "optical_flow":
            return _flow(spec, train=train)
        shape = _shape(_name(spec), kind, spec)
        smaller = [(*shape[:-2], side, side) for side in _SMALLER_SIDES.get(kind, ()) if side < shape[-1]]
        smaller = [one for one in smaller if spec.input_shape is None and not refuses(model, noise(_TRIED, *one))]
        shorter = tuple(image_samples(model, one, train=train) for one in smaller)
        return replace(image_samples(model, shape, train=train), shorter=shorter)


def _name(spec: TargetSpec) -> str:
    """The builder's name in the target; empty where the target is the user's own code."""
    module, _, name = spec.target.rpartition(":")
    return name if module.partition(".")[0] == Torchvision.package else ""


def _shape(name: str, kind: str, spec: TargetSpec) -> tuple[int, ...]:
    """One sample's shape: from ``--input``, else from the preprocessing that comes with the weights."""
    if spec.input_shape is not None:
        return spec.input_shape[1:]
    preprocessing = _preprocessing(name)
    crop = preprocessing.get("crop_size") or preprocessing.get("resize_size") or _USUAL_SIZE
    height, width = (crop[0], crop[-1]) if isinstance(crop, list | tuple) else (crop, crop)
    return (3, _CLIP_FRAMES, height, width) if kind == "video" else (3, height, width)


def _preprocessing(name: str) -> dict[str, Any]:
    from torchvision import models

    try:
        weights: Any = next(iter(models.get_model_weights(name)), None)
    except ValueError:
        return {}
    return dict(getattr(getattr(weights, "transforms", None), "keywords", {}))


def _detected_shape(model: nn.Module, spec: TargetSpec) -> tuple[int, ...]:
    """The size that the model's own transform brings images to."""
    if spec.input_shape is not None:
        return spec.input_shape[1:]
    transform: Any = getattr(model, "transform", None)
    if fixed := getattr(transform, "fixed_size", None):
        return (3, fixed[1], fixed[0])
    side = max(getattr(transform, "min_size", (800,)))
    return (3, side, side)


def _smaller_detection(model: nn.Module, spec: TargetSpec, *, train: bool) -> Iterator[Samples]:
    """Smaller images for a detector that was made by its name and resizes images to a size that nobody asked for."""
    own = getattr(getattr(model, "transform", None), "min_size", (0,))
    asked_for = spec.input_shape is not None or "min_size" in options_of(spec)
    if not _name(spec) or asked_for or getattr(model.transform, "fixed_size", None):
        return
    for side in (side for side in _SMALLER_SIDES["detection"] if side < max(own)):
        note = f"the model resizes images to a side of {side}, for this machine; `-- min_size={max(own)}` keeps its own"
        made = _detection(model, (3, side, side), train=train)
        yield replace(made, notes=(*made.notes, note), fit=partial(_resize_to, side))


def _resize_to(side: int, model: nn.Module) -> None:
    transform: Any = model.transform
    transform.min_size, transform.max_size = (side,), side


def _detection(model: nn.Module, shape: tuple[int, ...], *, train: bool) -> Samples:
    """Images with a few boxes each; masks and key points where the model has heads for them."""
    height, width = shape[-2:]
    heads: Any = getattr(model, "roi_heads", None)
    masks = getattr(heads, "mask_predictor", None) is not None
    points = getattr(getattr(heads, "keypoint_predictor", None), "out_channels", 0)

    def target(index: int) -> dict[str, torch.Tensor]:
        corner = whole_numbers(min(height, width) // 2, _BOXES, 2).float()
        found = {
            "boxes": torch.cat([corner, corner + torch.tensor([width / 3, height / 3])], 1),
            "labels": torch.ones(_BOXES, dtype=torch.int64),
        }
        if masks:
            found["masks"] = whole_numbers(2, _BOXES, height, width).to(torch.uint8)
        if points:
            found["keypoints"] = torch.cat([found["boxes"][:, None, :2].expand(-1, points, -1),
                                            torch.ones(_BOXES, points, 1)], 2)  # fmt: skip
        return found

    def images(size: int) -> Any:
        return noise(size, *shape)

    if not train:
        return Samples(images, trains=False)
    return Samples(
        lambda size: (images(size), [target(index) for index in range(size)]),
        trains=True,
        loss=detection_loss,
        optimizer=momentum,
        notes=(f"random images with {_BOXES} boxes each; the loss is the sum of the model's own",),
    )


def detection_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The sum of the losses that a torchvision detector returns while it trains."""
    images, targets = batch
    return torch.stack(list(model(images, targets).values())).sum()


def _flow(spec: TargetSpec, *, train: bool) -> Samples:
    def samples(height: int, width: int) -> Samples:
        def pair(size: int) -> tuple[torch.Tensor, ...]:
            images = noise(2 * size, 3, height, width)
            return images[:size], images[size:]

        def pair_with_flow(size: int) -> tuple[torch.Tensor, ...]:
            return (*pair(size), noise(size, 2, height, width))

        note = f"two images of {height}x{width}"
        if not train:
            return Samples(pair, trains=False, notes=(note,))
        return Samples(pair_with_flow, trains=True, loss=flow_loss, optimizer=momentum, notes=(note,))

    if spec.input_shape is not None:
        return samples(*spec.input_shape[-2:])
    first, *others = (samples(*size) for size in _FLOW_SIZES)
    return replace(first, shorter=tuple(others))


def flow_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The distance of every iteration's flow from the true one, later iterations counting more."""
    last = len(output) - 1
    losses = [_FLOW_DECAY ** (last - index) * (flow - target).abs().mean() for index, flow in enumerate(output)]
    return torch.stack(losses).sum()
