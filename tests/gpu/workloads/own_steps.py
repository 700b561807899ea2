"""A step that its user wrote, bound by the host: a GAN of two models and two optimizers.

perf-advisor tests/gpu/workloads/own_steps.py:dcgan
"""

import itertools

import torch
from torch import nn

import advisor


class Generator(nn.Sequential):
    """DCGAN's generator, of images of 64x64."""

    def __init__(self, noise, width, channels=3):
        sizes = [noise, 8 * width, 4 * width, 2 * width, width]
        layers = []
        for place, (before, after) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.ConvTranspose2d(before, after, 4, 2 if place else 1, 1 if place else 0, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh())


class Critic(nn.Sequential):
    """DCGAN's discriminator."""

    def __init__(self, width, channels=3):
        layers = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (1, 2, 4):
            layers += [nn.Conv2d(factor * width, 2 * factor * width, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(2 * factor * width), nn.LeakyReLU(0.2, inplace=True)]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def of_gan(module):
    """DCGAN's first weights."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
    return module


def dcgan(width=64, batch=64, noise=100, rate=2e-4):
    """The step of PyTorch's DCGAN tutorial, without the reading of its losses."""
    generator, critic = of_gan(Generator(noise, width)), of_gan(Critic(width))
    of_generator = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=rate, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    def step(real):
        of_critic.zero_grad()
        label = torch.full((len(real),), 1.0, device=real.device)
        on_real = criterion(critic(real), label)
        on_real.backward()
        fake = generator(torch.randn(len(real), noise, 1, 1, device=real.device))
        on_fake = criterion(critic(fake.detach()), label.fill_(0.0))
        on_fake.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = criterion(critic(fake), label.fill_(1.0))
        loss.backward()
        of_generator.step()
        return {"loss": (on_real + on_fake + loss).detach(), "generator": loss.detach()}

    data = torch.randn(batch, 3, 64, 64).tanh()
    return advisor.Workload(step=step, models=[generator, critic], optimizers=[of_generator, of_critic], data=data)
