"""A small decoder with dropout over an odd vocabulary, its gradients clipped, trained by AdamW."""

import torch
from torch import nn
from torch.nn import functional

from advisor import Workload

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH = 256, 4, 4, 5003, 128, 8


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def build():
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    return Workload(
        model=Decoder(),
        data=(tokens[:, :-1], tokens[:, 1:]),
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
        clip_grad=1.0,
    )
