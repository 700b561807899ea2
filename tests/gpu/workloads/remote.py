"""Batches of tokens read from afar: reading takes waiting, hardly any processor time.

``bursts``: two workers; every sixteenth batch takes much longer than the others, and the mean is shorter than a step.
``short_epochs``: epochs of a few batches, at whose ends the two workers end too. ``small_...``: for a processor.
``small_unaided``: no workers, so that each step waits for the reading, of every batch the same time.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, BATCH, CLASSES = 1000, 32, 10
LENGTH, WIDTH, LAYERS = 256, 512, 6
SMALL_LENGTH, SMALL_WIDTH, SMALL_LAYERS = 64, 64, 1
READ_S, LONG_READ_S, SLOW_READ_S = 0.004, 0.05, 0.25


class Batches(Dataset):
    """Whole batches, each after the time that reading it takes."""

    def __init__(self, batches, length, *, read_s=READ_S, slow_every=0):
        self.batches, self.length, self.read_s, self.slow_every = batches, length, read_s, slow_every

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        if index >= self.batches:
            raise IndexError(index)
        slow = self.slow_every and index % self.slow_every == self.slow_every - 1
        time.sleep(SLOW_READ_S if slow else self.read_s)
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCABULARY, (BATCH, self.length), generator=generator)
        return tokens, tokens[:, 0] % CLASSES


class Classifier(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens)).mean(dim=1))


def bursts():
    return _training(Classifier(WIDTH, LAYERS), Batches(512, LENGTH, slow_every=16))


def short_epochs():
    return _training(Classifier(WIDTH, LAYERS), Batches(8, LENGTH))


def small_bursts():
    return _training(Classifier(SMALL_WIDTH, SMALL_LAYERS), Batches(512, SMALL_LENGTH, slow_every=16))


def small_short_epochs():
    return _training(Classifier(SMALL_WIDTH, SMALL_LAYERS), Batches(8, SMALL_LENGTH))


def small_unaided():
    return _training(Classifier(SMALL_WIDTH, SMALL_LAYERS), Batches(512, SMALL_LENGTH, read_s=LONG_READ_S), workers=0)


def _training(model, dataset, *, workers=2):
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.01)
