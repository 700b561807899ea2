"""A network fed with JPEG files that one process decodes and augments: a step that waits for its input.

``build``: a ResNet-18 on 32 images a batch. ``mobile``: a MobileNetV3 on 128.
"""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
from torchvision.transforms import v2

SIDE, CROP, CLASSES = 320, 224, 100
IMAGES, BATCH = 512, 32
MOBILE_IMAGES, MOBILE_BATCH = 1024, 128


class Jpegs(Dataset):
    """Encoded images in memory, decoded and transformed as they are asked for."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(16, 3, 20, 20, generator=generator)
        images = (255 * nn.functional.interpolate(coarse, SIDE, mode="bilinear")).byte()
        self.count, self.encoded = count, [encode_jpeg(image, quality=90) for image in images]
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(CROP, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode_jpeg(self.encoded[index % len(self.encoded)], mode=ImageReadMode.RGB)
        return self.transform(image), index % CLASSES


def build():
    return _training(torchvision.models.resnet18(num_classes=CLASSES), IMAGES, BATCH)


def mobile():
    return _training(torchvision.models.mobilenet_v3_large(num_classes=CLASSES), MOBILE_IMAGES, MOBILE_BATCH)


def _training(model, images, batch):
    loader = DataLoader(Jpegs(images), batch_size=batch, shuffle=True, drop_last=True)
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
