"""The built-in target ``demo``: a small image classifier that trains on made-up images, on any machine.

Its loader makes and augments the images in the training process. An image takes as long as decoding a photograph, so
loading is a visible part of the step, as in many real loops.
"""

from advisor.workloads.workload import Workload

IMAGES, CLASSES = 640, 10
IMAGE_SIZE, CROP_SIZE = 160, 96
BATCH_SIZE = 32
SMALL_BATCH_SIZE = 8  # without a GPU: a step takes well under a second on two cores that others use as well


def build() -> Workload:
    """The demo's model, loader, loss and optimizer."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import FakeData

    widths = [(3, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    blocks = [
        nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        for inputs, outputs, stride in widths
    ]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1][1], CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP_SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    dataset = FakeData(IMAGES, (3, IMAGE_SIZE, IMAGE_SIZE), CLASSES, transform=augment)
    batch_size = BATCH_SIZE if torch.cuda.is_available() else SMALL_BATCH_SIZE
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
    return Workload(model=model, data=loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
