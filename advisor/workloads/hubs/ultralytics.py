"""Ultralytics: a YOLO network with its own loss, on random images with labels for its task."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advisor.records import Mode, TargetSpec
from advisor.workloads.guess import noise, runs_on_gpu, whole_numbers
from advisor.workloads.hubs.contract import Adapter, options_of, sample_shape, unknown_name
from advisor.workloads.loop import Loop

_SIDE, _SMALL_SIDE = 640, 320  # the side of an image on a GPU and on a CPU, in pixels
_BOXES = 4
_TRANSFORMER = "rtdetr"  # names with this word are of the class RTDETR, not YOLO
_MASK_RATIO = 4  # the side of an image divided by the side of a mask
_SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)


class Ultralytics(Adapter):
    """``ultralytics:NAME``, and YOLO objects."""

    prefix = package = "ultralytics"

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Build the network from the YAML file of its name, or read it from a file of weights."""
        os.environ.setdefault("YOLO_OFFLINE", "true")  # otherwise the import tries the network
        ultralytics = self.imported()
        options_of(spec)
        file = Path(spec.directory, name)
        kind = ultralytics.RTDETR if _TRANSFORMER in Path(name).stem.lower() else ultralytics.YOLO
        if file.is_file():
            return kind(str(file))
        try:
            return kind(f"{Path(name).stem}.yaml")
        except FileNotFoundError as error:
            from ultralytics.utils import ROOT

            known = [path.stem for path in (ROOT / "cfg" / "models").rglob("*.yaml")]
            raise unknown_name(name, "ultralytics", known) from error

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        from ultralytics.engine.model import Model

        if not isinstance(value, Model):
            return None
        network: Any = value.model
        for parameter in network.parameters():
            parameter.requires_grad_(parameter.is_floating_point())  # weights from a file are frozen
        return Loop(model=network.train(), mode=spec.mode)

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        from ultralytics.cfg import get_cfg

        if not type(model).__module__.startswith("ultralytics.nn."):
            return None
        network: Any = model
        side = _SIDE if runs_on_gpu(spec) else _SMALL_SIDE
        height, width = sample_shape(spec, 4, "8x3x640x640")[-2:] or (side, side)
        channels = int(getattr(network, "yaml", {}).get("channels", 3))
        note = f"random images of {height}x{width}"

        def images(size: int) -> torch.Tensor:
            return noise(size, channels, height, width).sigmoid()

        if not train or spec.mode is Mode.INFER or not hasattr(network, "loss"):
            return Loop(data=images, notes=[note])
        network.args, network.nc = get_cfg(), network.yaml["nc"]  # as its trainer does; `args` has the loss weights
        return Loop(
            data=lambda size: {"img": images(size), **_truth(network, size, height, width)},
            mode=Mode.TRAIN,
            loss=yolo_loss,
            optimizer=_SGD,
            notes=[f"{note}, the network's own loss"],
        )


def yolo_loss(model: Any, batch: Any) -> Any:
    """The sum of the losses that the network computes from a batch in Ultralytics' form."""
    return model.loss(batch)[0].sum()


def _truth(network: Any, size: int, height: int, width: int) -> dict[str, Any]:
    """Made-up labels for the images, in the form that the loss of the network's task expects."""
    head = network.model[-1]
    kind = type(head).__name__
    if kind == "Classify":
        return {"cls": whole_numbers(network.nc, size)}
    boxes = size * _BOXES
    centres = 0.3 + 0.4 * noise(boxes, 2).sigmoid()
    truth = {
        "batch_idx": torch.arange(size).repeat_interleave(_BOXES).float(),
        "cls": whole_numbers(network.nc, boxes, 1).float(),
        "bboxes": torch.cat([centres, torch.full((boxes, 2), 0.2)], 1),
    }
    if kind.startswith("Segment"):
        truth["masks"] = whole_numbers(_BOXES + 1, size, height // _MASK_RATIO, width // _MASK_RATIO).float()
    if kind.startswith("Pose"):
        points, values = head.kpt_shape
        visible = torch.full((boxes, points, values - 2), 2.0)
        truth["keypoints"] = torch.cat([centres[:, None].expand(-1, points, -1), visible], 2)
    if kind.startswith("OBB"):
        truth["bboxes"] = torch.cat([truth["bboxes"], torch.full((boxes, 1), 0.1)], 1)
    return truth
