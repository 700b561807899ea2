"""A diffusion model: a small U-Net that predicts noise, with a schedule that stays on the host, AdamW."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, SIDE, STEPS, BATCH = 64, 32, 1000, 64
KEPT = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)


class Block(nn.Module):
    def __init__(self, inputs, outputs, times):
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.second_norm, self.second = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        hidden = self.first(functional.silu(self.first_norm(x)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        return self.second(functional.silu(self.second_norm(hidden))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        width, times = WIDTH, 4 * WIDTH
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.halve1 = Block(width, width, times), nn.Conv2d(width, width, 3, 2, 1)
        self.down2, self.halve2 = Block(width, 2 * width, times), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
        self.middle1, self.middle2 = Block(2 * width, 4 * width, times), Block(4 * width, 2 * width, times)
        self.up2, self.up1 = Block(4 * width, width, times), Block(2 * width, width, times)
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, step):
        half = WIDTH // 2
        waves = step[:, None].float() * torch.exp(-torch.arange(half, device=x.device) * (9.21 / half))
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        high = self.down1(self.first(x), time)
        low = self.down2(self.halve1(high), time)
        hidden = self.middle2(self.middle1(self.halve2(low), time), time)
        hidden = self.up2(torch.cat([functional.interpolate(hidden, scale_factor=2), low], 1), time)
        return self.last(self.up1(torch.cat([functional.interpolate(hidden, scale_factor=2), high], 1), time))


def noise_loss(model, batch):
    (images,) = batch
    step = torch.randint(0, STEPS, (len(images),), device=images.device)
    kept = KEPT.to(images.device)[step][:, None, None, None]
    noise = torch.randn_like(images)
    return functional.mse_loss(model(kept.sqrt() * images + (1 - kept).sqrt() * noise, step), noise)


def build():
    return UNet(), (torch.randn(BATCH, 3, SIDE, SIDE),), noise_loss, lambda p: torch.optim.AdamW(p, lr=2e-4)
