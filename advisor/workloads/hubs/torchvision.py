"""torchvision's models, with the shapes from the metadata of their weights. Nothing is downloaded."""

import contextlib
import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from advisor.records import Mode, TargetSpec
from advisor.workloads.guess import image_samples, momentum, noise, runs_on_gpu, whole_numbers
from advisor.workloads.hubs.contract import Adapter, options_of, sample_shape, unknown_name
from advisor.workloads.loop import Loop

_CLIP_FRAMES, _USUAL_SIZE = 16, 224
_BOXES = 4  # in each made-up image
# The size of an image pair for optical flow: RAFT's training crop on a GPU, its smallest size on a CPU.
_FLOW_SIZE, _SMALL_FLOW_SIZE = (368, 496), (128, 128)
_FLOW_DECAY = 0.8  # each iteration's loss weighs 0.8 times the next iteration's, as in RAFT's training


class Torchvision(Adapter):
    """``torchvision:NAME``, and models of its classes."""

    prefix = package = "torchvision"

    def load(self, name: str, spec: TargetSpec) -> Any:
        models: Any = self.imported().models
        try:
            build = models.get_model_builder(name)
        except ValueError:
            raise unknown_name(name, "torchvision", models.list_models()) from None
        # Some builders load a pretrained backbone by default.
        offline = {"weights_backbone": None} if "weights_backbone" in inspect.signature(build).parameters else {}
        return build(weights=None, **offline, **options_of(spec))

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        room, _, rest = type(model).__module__.partition(".models.")
        if room != "torchvision":
            return None
        kind = rest.partition(".")[0]
        given = sample_shape(spec, *((5, "2x3x16x112x112") if kind == "video" else (4, "8x3x224x224")))
        train = train and model.training
        if kind == "optical_flow":
            height, width = given[-2:] or (_FLOW_SIZE if runs_on_gpu(spec) else _SMALL_FLOW_SIZE)

            def make(size: int) -> tuple[torch.Tensor, ...]:
                pair = noise(2 * size, 3, height, width).split(size)
                return (*pair, noise(size, 2, height, width)) if train else pair

            found = Loop(data=make, notes=[f"two images of {height}x{width}"])
            return replace(found, mode=Mode.TRAIN, loss=flow_loss, optimizer=momentum) if train else found
        if kind == "detection":
            return _detection(model, given, train=train)
        return image_samples(model, given or _shape(kind, spec), train=train)


def _shape(kind: str, spec: TargetSpec) -> tuple[int, ...]:
    """One sample's shape, from the preprocessing of the named model's weights."""
    from torchvision import models

    crop: Any = _USUAL_SIZE
    with contextlib.suppress(ValueError, StopIteration):  # a user's own model, or no weights
        weights: Any = next(iter(models.get_model_weights(spec.target.rpartition(":")[2])))
        crop = weights.transforms.keywords.get("crop_size") or weights.transforms.keywords.get("resize_size", crop)
    height, width = (crop[0], crop[-1]) if isinstance(crop, list | tuple) else (crop, crop)
    return (3, _CLIP_FRAMES, height, width) if kind == "video" else (3, height, width)


def _detection(model: Any, given: tuple[int, ...], *, train: bool) -> Loop:
    """Images of the given size, or else of the model's own transform, with targets for the model's heads."""
    own = getattr(model.transform, "fixed_size", None) or [max(getattr(model.transform, "min_size", (800,)))] * 2
    shape = given or (3, *own[::-1])
    height, width = shape[-2:]
    heads: Any = getattr(model, "roi_heads", None)
    masks = getattr(heads, "mask_predictor", None) is not None
    points = getattr(getattr(heads, "keypoint_predictor", None), "out_channels", 0)

    def target() -> dict[str, torch.Tensor]:
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

    if not train:
        return Loop(data=lambda size: noise(size, *shape))
    return Loop(
        data=lambda size: (noise(size, *shape), [target() for _ in range(size)]),
        mode=Mode.TRAIN,
        loss=detection_loss,
        optimizer=momentum,
        notes=[f"random images with {_BOXES} boxes each; the loss is the sum of the model's own losses"],
    )


def detection_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The sum of the losses that a torchvision detector returns while it trains."""
    images, targets = batch
    return torch.stack(list(model(images, targets).values())).sum()


def flow_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The mean distance of each iteration's flow from the true flow, summed with more weight for later iterations."""
    last = len(output) - 1
    losses = [_FLOW_DECAY ** (last - index) * (flow - target).abs().mean() for index, flow in enumerate(output)]
    return torch.stack(losses).sum()
