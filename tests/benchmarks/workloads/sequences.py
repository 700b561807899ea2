"""Sequences: a language model, a tagger over packed sequences, a transformer that is bound by the host."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class LanguageModel(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.recurrent(self.tokens(tokens))
        return self.head(hidden)


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def lstm():
    """A language model of two LSTM layers."""
    width, vocabulary, length, batch = 1024, 20000, 64, 64
    tokens = torch.randint(vocabulary, (batch, length + 1))
    data = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return LanguageModel(width, vocabulary), data, next_token_loss, lambda p: torch.optim.Adam(p, lr=1e-3)


class Tagger(nn.Module):
    def __init__(self, width, vocabulary, tags):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.states = nn.GRU(width, width, 2, bidirectional=True, batch_first=True, dropout=0.3)
        self.tags = nn.Linear(2 * width, tags)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.states(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.tags(states)


def tags_loss(model, batch):
    words, lengths, tags = batch
    return functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten(), ignore_index=-1)


def tagger():
    """A bidirectional GRU over packed sequences, whose lengths the host reads in each step."""
    width, length, vocabulary, count, batch = 256, 100, 20_000, 20, 64
    lengths = torch.randint(length // 5, length + 1, (batch,))
    words, tags = torch.randint(1, vocabulary, (batch, length)), torch.randint(count, (batch, length))
    beyond = torch.arange(length)[None] >= lengths[:, None]
    words[beyond], tags[beyond] = 0, -1
    return Tagger(width, vocabulary, count), (words, lengths, tags), tags_loss, lambda p: torch.optim.Adam(p, lr=1e-3)


class Classifier(nn.Module):
    def __init__(self, width, length, vocabulary, classes):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens) + self.positions).mean(dim=1))


def tiny_transformer():
    """A transformer so small that the host's calls and launches take most of the step."""
    width, length, vocabulary, batch, classes = 128, 32, 1000, 16, 10
    data = (torch.randint(vocabulary, (batch, length)), torch.randint(classes, (batch,)))
    model = Classifier(width, length, vocabulary, classes)
    return model, data, nn.CrossEntropyLoss(), lambda p: torch.optim.Adam(p, lr=1e-3)
