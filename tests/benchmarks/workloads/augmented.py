"""Small images in memory, changed in Python by torchvision's transforms: the loader bounds a ResNet-18, SGD."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms import v2

IMAGES, SIDE, CLASSES, BATCH = 4096, 64, 10, 128


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (IMAGES, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator).numpy()
        changes = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)]
        scale = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3)]
        self.transform = v2.Compose([v2.ToImage(), *changes, *scale])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.images[index, 0, 0, 0]) % CLASSES


def build():
    loader = DataLoader(Images(), batch_size=BATCH, shuffle=True)
    return (
        resnet18(num_classes=CLASSES),
        loader,
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    )
