"""A convolutional autoencoder on images of 128 by 128 pixels, with biased convolutions before batch norms."""

import itertools

import torch
from torch import nn

WIDTHS, BATCH, SIZE = (3, 64, 128, 256), 64, 128


def _down(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def _up(inputs, outputs):
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def build():
    pairs = list(itertools.pairwise(WIDTHS))
    decoder = [_up(outputs, inputs) for inputs, outputs in reversed(pairs[1:])]
    model = nn.Sequential(
        *[_down(*pair) for pair in pairs], *decoder, nn.ConvTranspose2d(WIDTHS[1], 3, 4, stride=2, padding=1)
    )
    images = torch.rand(BATCH, 3, SIZE, SIZE)
    return model, (images, images.clone()), nn.MSELoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
