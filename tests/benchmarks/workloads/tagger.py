"""A tagger of words: a bidirectional GRU over packed sequences, whose lengths the host reads in each step, Adam."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTH, LAYERS, LENGTH, VOCABULARY, TAGS, BATCH = 256, 2, 100, 20_000, 20, 64


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.states = nn.GRU(WIDTH, WIDTH, LAYERS, bidirectional=True, batch_first=True, dropout=0.3)
        self.tags = nn.Linear(2 * WIDTH, TAGS)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.states(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.tags(states)


def tags_loss(model, batch):
    words, lengths, tags = batch
    return functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten(), ignore_index=-1)


def build():
    lengths = torch.randint(LENGTH // 5, LENGTH + 1, (BATCH,))
    words, tags = torch.randint(1, VOCABULARY, (BATCH, LENGTH)), torch.randint(TAGS, (BATCH, LENGTH))
    beyond = torch.arange(LENGTH)[None] >= lengths[:, None]
    words[beyond], tags[beyond] = 0, -1
    return Tagger(), (words, lengths, tags), tags_loss, lambda p: torch.optim.Adam(p, lr=1e-3)
