"""A small decoder with every habit that costs: tensors made on the host, waits for the GPU, deterministic algorithms
and anomaly detection left on, clipped gradients, a vocabulary off every multiple."""

import torch
from torch import nn
from torch.nn import functional

import advisor

WIDTH, HEADS, BLOCKS, VOCABULARY, LENGTH, BATCH = 512, 8, 6, 10007, 128, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        heads = self.project(self.norm_1(hidden)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.mlp(self.norm_2(hidden))


class Careless(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(LENGTH).to(tokens.device)  # made on the host, and copied in each step
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
            if hidden.abs().max().item() > 1e4:  # the host waits for the device in each block
                raise ValueError("the activations explode")
        return self.head(hidden)


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def build():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.autograd.set_detect_anomaly(True)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return advisor.Workload(
        Careless(), batch, next_token_loss, lambda parameters: torch.optim.Adam(parameters, lr=3e-4), clip_grad=1.0
    )
