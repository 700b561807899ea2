"""Tiny models and data for the loops. Mostly smooth, so that rounding does not grow from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES, VOCABULARY, LENGTH = 8, 4, 24, 10
SAMPLES, BATCH = 40, 8
EPOCHS = 10  # of five batches each


def mlp(inputs: int = FEATURES, outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))


class ConvNet(nn.Module):
    """Convolutions and batch norms.

    ``common``: as most are written, with biases that the norms take off again, and with kinks (ReLU). Both let rounding
    grow under Adam.
    """

    def __init__(self, outputs: int = CLASSES, *, common: bool = False) -> None:
        super().__init__()
        bias, activation = common, nn.ReLU if common else nn.GELU
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=bias),
            nn.BatchNorm2d(8),
            activation(),
            nn.Conv2d(8, 8, 3, padding=1, bias=bias),
            nn.BatchNorm2d(8),
            activation(),
        )
        self.head = nn.Linear(8, outputs)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


def without_norm_biases(state: dict[str, Any]) -> dict[str, Any]:
    """A state of a common ConvNet with the convolutions' biases taken off the norms' means, as the norms take them off.

    Only the difference of both counts: a setting may leave out the biases.
    """
    reduced = dict(state)
    for place in (0, 3):
        bias = reduced.pop(f"features.{place}.bias", None)
        if bias is not None:
            mean = f"features.{place + 1}.running_mean"
            reduced[mean] = reduced[mean] - bias
    return reduced


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    """A language model in the manner of nanoGPT: tied embeddings, its own loss, its own ``generate``."""

    def __init__(self, width: int = 16, blocks: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(4 * LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, lr: float) -> torch.optim.AdamW:
        """Weight decay for matrices only, as nanoGPT does it."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))

    @torch.no_grad()
    def generate(self, ids, count: int):
        for _ in range(count):
            logits, _ = self(ids[:, -LENGTH:])
            ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), 1)
        return ids


class Recurrent(nn.Module):
    """An LSTM over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, sequences):
        _, (hidden, _) = self.lstm(sequences)
        return self.head(hidden[-1])


@dataclass
class Output:
    """What a Hugging Face model returns, as far as loops read it."""

    loss: Any = None
    logits: Any = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class WithOwnLoss(nn.Module):
    """A model in the manner of Hugging Face: keywords in, its own loss among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.encoder, self.classifier = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        hidden = torch.tanh(self.encoder(self.embedding(input_ids)))
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        logits = self.classifier((hidden * weights).sum(1) / weights.sum(1))
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return Output(loss, logits)


# --- data -----------------------------------------------------------------------------------------------------


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(samples: int = SAMPLES) -> TensorDataset:
    inputs = torch.randn(samples, FEATURES, generator=generator())
    return TensorDataset(inputs, (inputs[:, :CLASSES] + inputs[:, CLASSES:]).argmax(1))


def images(samples: int = SAMPLES) -> TensorDataset:
    inputs = torch.randn(samples, 3, 8, 8, generator=generator())
    return TensorDataset(inputs, inputs.mean((2, 3)).argmax(1))


def tokens(samples: int = SAMPLES, length: int = LENGTH + 1) -> torch.Tensor:
    """Sequences that count up, so that there is something to learn."""
    starts = torch.randint(VOCABULARY, (samples, 1), generator=generator())
    return (starts + torch.arange(length)) % VOCABULARY


def loader(dataset: Any, *, shuffle: bool = True, batch_size: int = BATCH, **options: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, **options)


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return (logits.argmax(-1) == labels).double().mean().item()
