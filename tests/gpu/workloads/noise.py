"""A denoising network that draws its noise on the host and copies it to the GPU in each step."""

import torch
from torch import nn

SIDE, BATCH, WIDTH = 128, 64, 32


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, 3, 3, padding=1))

    def forward(self, images):
        noise = torch.randn(images.shape).to(images.device)
        return self.layers(images + 0.1 * noise)


def build():
    images = torch.rand(BATCH, 3, SIDE, SIDE)
    return Denoiser(), (images, images), nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.01)
