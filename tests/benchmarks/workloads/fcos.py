"""FCOS of torchvision's with synthetic targets: the model matches boxes itself, and returns a dict of losses."""

import torch
from torchvision.models.detection import fcos_resnet50_fpn

SIDE, BATCH, BOXES, CLASSES = 256, 8, 5, 20


def detection_loss(model, batch):
    targets = [
        {"boxes": boxes, "labels": labels} for boxes, labels in zip(batch["boxes"], batch["labels"], strict=True)
    ]
    return sum(model(list(batch["images"]), targets).values())


def build():
    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=CLASSES, min_size=SIDE, max_size=SIDE)
    corners = SIDE / 2 * torch.rand(BATCH, BOXES, 2)
    sizes = 16 + SIDE / 4 * torch.rand(BATCH, BOXES, 2)
    batch = {
        "images": torch.rand(BATCH, 3, SIDE, SIDE),
        "boxes": torch.cat([corners, corners + sizes], dim=2),
        "labels": torch.randint(1, CLASSES, (BATCH, BOXES)),
    }
    return model, batch, detection_loss, lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
