"""A Conformer of torchaudio's that labels frames of speech. It reads the longest length on the host in each step."""

import torch
import torchaudio
from torch import nn
from torch.nn import functional

FEATURES, WIDTH, HEADS, LAYERS, FRAMES, BATCH, LABELS = 80, 256, 4, 8, 400, 16, 500


class Labeller(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(FEATURES, WIDTH)
        self.encoder = torchaudio.models.Conformer(WIDTH, HEADS, 4 * WIDTH, LAYERS, 31, dropout=0.1)
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, features, lengths):
        encoded, _ = self.encoder(self.project(features), lengths)
        return self.head(encoded)


def frame_loss(output, target):
    return functional.cross_entropy(output.transpose(1, 2), target)


def build():
    batch = (torch.randn(BATCH, FRAMES, FEATURES), torch.full((BATCH,), FRAMES), torch.randint(LABELS, (BATCH, FRAMES)))
    return Labeller(), batch, frame_loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)
