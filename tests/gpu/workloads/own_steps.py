"""Steps that their users wrote: a GAN, Q-learning and a critic with a gradient penalty, all bound by the host.

perf-advisor tests/gpu/workloads/own_steps.py:dcgan
"""

import itertools

import torch
from torch import nn
from torch.nn import functional

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
    """DCGAN's discriminator. ``norm`` is the normalisation between its layers."""

    def __init__(self, width, channels=3, norm=nn.BatchNorm2d):
        layers = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (1, 2, 4):
            layers += [nn.Conv2d(factor * width, 2 * factor * width, 4, 2, 1, bias=False)]
            layers += [norm(2 * factor * width), nn.LeakyReLU(0.2, inplace=True)]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def instance_norm(width):
    return nn.InstanceNorm2d(width, affine=True)


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

    return workload(step, [generator, critic], [of_generator, of_critic], torch.randn(batch, 3, 64, 64).tanh())


def dqn(width=256, batch=128, observations=8, actions=4, rate=1e-4):
    """The step of PyTorch's DQN tutorial on transitions of one shape, with a target network that follows slowly."""

    def network():
        layers = [nn.Linear(observations, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, actions))

    policy, target = network(), network()
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, amsgrad=True)

    def step(transitions):
        state, action, reward, following, goes_on = transitions
        chosen = policy(state).gather(1, action)
        with torch.no_grad():
            expected = reward + 0.99 * goes_on * target(following).max(1).values
        loss = functional.smooth_l1_loss(chosen[:, 0], expected)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for slow, now in zip(target.parameters(), policy.parameters(), strict=True):
                slow.lerp_(now, 0.005)
        return loss

    state, following = torch.randn(2, batch, observations)
    action, goes_on = torch.randint(actions, (batch, 1)), (torch.rand(batch) > 0.05).float()
    return workload(step, [policy, target], [optimizer], (state, action, torch.randn(batch), following, goes_on))


def wgan_gp(width=32, batch=64, noise=100, critic_steps=5, rate=1e-4):
    """WGAN-GP: some steps of the critic with a penalty on its gradients, then one of the generator."""
    generator, critic = of_gan(Generator(noise, width)), of_gan(Critic(width, norm=instance_norm))
    of_generator = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=rate, betas=(0.0, 0.9))

    def made(real):
        return generator(torch.randn(len(real), noise, 1, 1, device=real.device))

    def step(real):
        for _ in range(critic_steps):
            fake = made(real).detach()
            share = torch.rand(len(real), 1, 1, 1, device=real.device)
            between = (share * real + (1 - share) * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
            of_critic.zero_grad(set_to_none=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
            loss.backward()
            of_critic.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        of_generator.zero_grad(set_to_none=True)
        of_fake = -critic(made(real)).mean()
        of_fake.backward()
        of_generator.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        return (loss.detach() + of_fake.detach()) / 2

    return workload(step, [generator, critic], [of_generator, of_critic], torch.randn(batch, 3, 64, 64).tanh())


def workload(step, models, optimizers, data):
    return advisor.Workload(step=step, models=models, optimizers=optimizers, data=data)
