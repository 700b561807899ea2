"""A decoder of GPT-2's size (124 million parameters, dropout 0.1) with a tied head, trained by AdamW."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, BLOCKS, VOCABULARY, LENGTH, BATCH = 768, 12, 12, 50257, 512, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        heads = self.project(hidden).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        dropout = 0.1 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm_2, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden):
        hidden = hidden + self.dropout(self.attention(self.norm_1(hidden)))
        return hidden + self.dropout(self.mlp(self.norm_2(hidden)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(_initialise)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        hidden = self.dropout(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def _initialise(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def build():
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return Decoder(), batch, next_token_loss, lambda parameters: torch.optim.AdamW(parameters, lr=3e-4)
