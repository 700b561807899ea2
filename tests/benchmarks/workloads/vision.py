"""Models of torchvision's: segmentation, detection, mobile images, clips, images changed in Python, two views."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import mobilenet_v3_large, resnet18
from torchvision.models.detection import fcos_resnet50_fpn
from torchvision.models.segmentation import fcn_resnet50
from torchvision.models.video import r3d_18
from torchvision.transforms import v2


def sgd(lr, **options):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, **options)


def images(batch, side, classes):
    return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))


def mobilenet():
    """MobileNetV3: depthwise convolutions, bound by memory and launches."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return mobilenet_v3_large(num_classes=1000), images(128, 224, 1000), loss, sgd(0.05, weight_decay=4e-5)


def r3d():
    """A 3-D ResNet-18 on short clips: convolutions over time and space."""
    batch = (torch.randn(8, 3, 16, 112, 112), torch.randint(101, (8,)))
    return r3d_18(weights=None, num_classes=101), batch, nn.CrossEntropyLoss(), sgd(0.01)


def pixel_loss(output, target):
    return functional.cross_entropy(output["out"], target)


def fcn():
    """A fully convolutional network on ResNet-50 that labels each pixel."""
    batch, side, classes = 16, 256, 21
    model = fcn_resnet50(weights=None, weights_backbone=None, num_classes=classes)
    return (
        model,
        (torch.randn(batch, 3, side, side), torch.randint(classes, (batch, side, side))),
        pixel_loss,
        sgd(0.01),
    )


def detection_loss(model, batch):
    targets = [
        {"boxes": boxes, "labels": labels} for boxes, labels in zip(batch["boxes"], batch["labels"], strict=True)
    ]
    return sum(model(list(batch["images"]), targets).values())


def fcos():
    """FCOS with synthetic targets: the model matches boxes itself, and returns a dict of losses."""
    side, batch, boxes, classes = 256, 8, 5, 20
    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=classes, min_size=side, max_size=side)
    corners = side / 2 * torch.rand(batch, boxes, 2)
    sizes = 16 + side / 4 * torch.rand(batch, boxes, 2)
    data = {
        "images": torch.rand(batch, 3, side, side),
        "boxes": torch.cat([corners, corners + sizes], dim=2),
        "labels": torch.randint(1, classes, (batch, boxes)),
    }
    return model, data, detection_loss, sgd(1e-4)


class Images(Dataset):
    def __init__(self, count=4096, side=64):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, side, side, 3), dtype=torch.uint8, generator=generator).numpy()
        changes = [v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)]
        scale = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3)]
        self.transform = v2.Compose([v2.ToImage(), *changes, *scale])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.images[index, 0, 0, 0]) % 10


def augmented():
    """Small images in memory, changed in Python by torchvision's transforms: the loader bounds a ResNet-18."""
    loader = DataLoader(Images(), batch_size=128, shuffle=True)
    return resnet18(num_classes=10), loader, nn.CrossEntropyLoss(), sgd(0.05)


class TwoViews(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.features = resnet18(num_classes=width)
        self.features.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.features.maxpool = nn.Identity()
        self.head = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 128))

    def forward(self, one, other):
        return functional.normalize(self.head(self.features(torch.cat([one, other]))), dim=1)


def pairs_loss(model, batch):
    found, temperature = model(*batch), 0.5
    count = len(found)
    alike = found @ found.T / temperature
    alike = alike.masked_fill(torch.eye(count, dtype=torch.bool, device=found.device), float("-inf"))
    partner = (torch.arange(count, device=found.device) + count // 2) % count
    return functional.cross_entropy(alike, partner)


def contrastive():
    """Contrastive learning: a ResNet-18 for small images sees two views of each, a loss over all pairs."""
    views = torch.randn(256, 3, 32, 32), torch.randn(256, 3, 32, 32)
    return TwoViews(), views, pairs_loss, lambda p: torch.optim.Adam(p, lr=3e-4, weight_decay=1e-4)
