"""Images that two workers augment for a small network. ``pinned`` has pinned memory, and copies that block."""

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

IMAGES, SIDE, BATCH, CLASSES = 2048, 160, 64, 10


class Images(Dataset):
    """Bytes in memory, cut and turned sample by sample, then scaled."""

    def __init__(self):
        self.images = numpy.random.default_rng(0).integers(0, 256, (64, 3, SIDE, SIDE), dtype=numpy.uint8)
        self.transform = v2.Compose(
            [
                v2.RandomCrop(128),
                v2.RandomHorizontalFlip(),
                v2.GaussianBlur(3),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]),
            ]
        )

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return self.transform(torch.from_numpy(self.images[index % len(self.images)])), index % CLASSES


def build(*, pinned=False):
    loader = DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=2, pin_memory=pinned)
    return _training(loader)


def pinned():
    return build(pinned=True)


def _training(loader):
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.05)
