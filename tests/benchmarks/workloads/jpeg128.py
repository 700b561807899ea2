"""MobileNetV3 fed with JPEG files, 128 a batch, that the training process decodes itself."""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
from torchvision.transforms import v2

IMAGES, SIDE, CROP, BATCH, CLASSES = 1024, 320, 224, 128, 100


class Jpegs(Dataset):
    """Encoded images in memory, decoded and transformed as they are asked for."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(16, 3, 20, 20, generator=generator)
        images = (255 * nn.functional.interpolate(coarse, SIDE, mode="bilinear")).byte()
        self.encoded = [encode_jpeg(image, quality=90) for image in images]
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(CROP, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        image = decode_jpeg(self.encoded[index % len(self.encoded)], mode=ImageReadMode.RGB)
        return self.transform(image), index % CLASSES


def build():
    loader = DataLoader(Jpegs(), batch_size=BATCH, shuffle=True, num_workers=0, drop_last=True)
    return (
        torchvision.models.mobilenet_v3_large(num_classes=CLASSES),
        loader,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )
