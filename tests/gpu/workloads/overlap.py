"""Large batches of bytes in pinned memory for a network of many small layers: the copy takes about as long as the host
needs to launch a step, so that it matters whether the host waits for it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BLOCKS, CLASSES, BATCH, BATCHES, SIDE = 256, 24, 100, 128, 64, 512


class Batches(Dataset):
    """Whole batches that lie in pinned memory, which a loader that pins leaves as they are."""

    def __init__(self):
        self.images = None

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        if self.images is None:  # pinning needs the device, which building the workload does without
            self.images = [torch.full((BATCH, 3, SIDE, SIDE), level, dtype=torch.uint8) for level in (10, 200)]
            if torch.cuda.is_available():
                self.images = [images.pin_memory() for images in self.images]
            self.targets = torch.arange(BATCH) % CLASSES
        return self.images[index % 2], self.targets


class Coarse(nn.Module):
    """Every 32nd pixel of an image, as one row of numbers."""

    def forward(self, images):
        return images[:, :, ::32, ::32].flatten(1).float() / 255


def build():
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    model = nn.Sequential(Coarse(), nn.Linear(3 * (SIDE // 32) ** 2, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))
    loader = DataLoader(Batches(), batch_size=None, pin_memory=True)
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
