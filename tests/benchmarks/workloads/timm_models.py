"""Image classifiers of timm's on one batch of random images."""

import timm
import torch
from torch import nn

NAMES = {
    "convnext": "convnext_tiny",
    "mobile": "mobilenetv3_large_100",
    "swin": "swin_tiny_patch4_window7_224",
    "vit": "vit_small_patch16_224",
}
SIDE, CLASSES, LARGEST_BATCH = 224, 1000, 64


def convnext():
    """ConvNeXt-tiny: large depthwise convolutions, layer norms over channels."""
    return _training("convnext", 32, adamw, smoothing=0.1)


def mobile():
    """A mobile network with squeeze-and-excitation, trained by RMSprop as its authors did."""
    options = {"lr": 1e-3, "alpha": 0.9, "eps": 1e-3, "momentum": 0.9}
    return _training("mobile", 64, lambda parameters: torch.optim.RMSprop(parameters, **options))


def swin():
    """Swin-tiny with stochastic depth."""
    return _training("swin", 64, adamw, smoothing=0.1, drop_path_rate=0.2)


def vit():
    """ViT-S/16."""
    return _training("vit", 64, adamw)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)


def _training(name, batch, optimizer, *, smoothing=0.0, **options):
    count = min(batch, LARGEST_BATCH)
    images = torch.randn(count, 3, SIDE, SIDE), torch.randint(CLASSES, (count,))
    model = timm.create_model(NAMES[name], num_classes=CLASSES, **options)
    return model, images, nn.CrossEntropyLoss(label_smoothing=smoothing), optimizer
