"""A transformer encoder of BERT-base's width (6 layers, dropout 0) that classifies sequences."""

import torch
from torch import nn

WIDTH, HEADS, LAYERS, LENGTH, BATCH, CLASSES = 768, 12, 6, 128, 32, 10


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, features):
        return self.head(self.encoder(features).mean(dim=1))


def build():
    batch = (torch.randn(BATCH, LENGTH, WIDTH), torch.randint(CLASSES, (BATCH,)))
    return Classifier(), batch, nn.CrossEntropyLoss(), lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)
