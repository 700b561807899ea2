"""A decoder with a mixture of experts: tokens are routed by shapes that depend on the data, AdamW."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, EXPERTS, CHOSEN, LENGTH, VOCABULARY, BATCH = 512, 8, 6, 8, 2, 512, 32_000, 8


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        experts = (
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )
        self.experts = nn.ModuleList(experts)

    def forward(self, x):
        tokens = x.reshape(-1, WIDTH)
        share, chosen = torch.topk(self.gate(tokens).softmax(-1), CHOSEN)
        share = share / share.sum(-1, keepdim=True)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            result[rows] += share[rows, places, None] * expert(tokens[rows])
        return result.view(x.shape)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.output, self.mixture = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Mixture()

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.inputs(self.first_norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(x.shape))
        return x + self.mixture(self.second_norm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def next_word_loss(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def build():
    words, target = torch.randint(VOCABULARY, (2, BATCH, LENGTH))
    return Decoder(), (words, target), next_word_loss, lambda p: torch.optim.AdamW(p, lr=3e-4, betas=(0.9, 0.95))
