"""A language model of two LSTM layers."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, VOCABULARY, LENGTH, BATCH = 1024, 2, 20000, 64, 64


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.recurrent(self.tokens(tokens))
        return self.head(hidden)


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def build():
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return LanguageModel(), batch, next_token_loss, lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
