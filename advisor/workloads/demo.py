"""The built-in target ``demo``: a small image classifier that trains from JPEG files, on any machine.

Its loader decodes and augments in the training process, so the input is a visible part of the step, as it is in many
a real loop. The images are made once and kept in the temporary folder, where every trial finds them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.workloads.workload import Workload

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn
    from torch.utils.data import DataLoader

CLASSES = 10
IMAGES_PER_CLASS = 64
IMAGE_SIZE = 160
CROP_SIZE = 96
BATCH_SIZE = 32
# Without a GPU: a step takes well under a second on two cores that others use as well.
SMALL_BATCH_SIZE = 8
_VERSION = 1  # of the images: a new number makes new ones
_SEED = 20


def build() -> Workload:
    """The demo's model, loader, loss and optimizer."""
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Workload(model=model, data=_loader(image_folder()), loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer)


def image_folder() -> Path:
    """The folder of images, with a folder for each class. It is made where it is missing or incomplete."""
    folder = Path(tempfile.gettempdir()) / f"perf-advisor-demo-v{_VERSION}-{os.getuid()}"
    if not all(path.is_file() for path in _files(folder)):
        _make(folder)
    return folder


def _model() -> nn.Module:
    from torch import nn

    widths = [(3, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    blocks = [
        nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        for inputs, outputs, stride in widths
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1][1], CLASSES))


def _loader(folder: Path) -> DataLoader[Any]:
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP_SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    batch_size = BATCH_SIZE if torch.cuda.is_available() else SMALL_BATCH_SIZE
    return DataLoader(ImageFolder(str(folder), transform=augment), batch_size=batch_size, shuffle=True)


def _files(folder: Path) -> Iterator[Path]:
    for label in range(CLASSES):
        for number in range(IMAGES_PER_CLASS):
            yield folder / f"class_{label}" / f"{number:03}.jpg"


def _make(folder: Path) -> None:
    """Write the images elsewhere and rename their folder: of processes that start together, the first one's stays."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as temporary:
        fresh = Path(temporary, "images")
        _write_images(fresh)
        if folder.exists() and not all(path.is_file() for path in _files(folder)):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            fresh.rename(folder)


def _write_images(folder: Path) -> None:
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    for path in _files(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        label = int(path.parent.name.removeprefix("class_"))
        _image(label, generator).save(path, quality=90)


def _image(label: int, generator: Any) -> Image:
    """Stripes whose colour and width tell the class; phase, slant and noise differ from image to image."""
    import torch
    from torchvision.transforms.functional import to_pil_image

    phase, slant = (torch.rand(2, generator=generator) * torch.tensor([6.28, 0.6])).tolist()
    across = torch.linspace(0, 6.28, IMAGE_SIZE)
    stripes = torch.sin((4 + label) * (across[None, :] + slant * across[:, None]) + phase)
    hue = 6.28 * label / CLASSES + torch.tensor([0.0, 2.09, 4.19])
    colour = 0.5 + 0.35 * torch.cos(hue)
    noise = 0.08 * torch.randn(3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    image: Image = to_pil_image((colour[:, None, None] * (0.75 + 0.35 * stripes) + noise).clamp(0, 1))
    return image
