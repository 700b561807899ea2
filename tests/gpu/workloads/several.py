"""Models for several GPUs: a ResNet, a GPT, a recommender and uneven text."""

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def resnet():
    batch = torch.randn(256, 3, 224, 224), torch.randint(1000, (256,))
    return torchvision.models.resnet50(), batch, nn.CrossEntropyLoss(), sgd


class Block(nn.Module):
    """A block of a GPT: causal attention and a perceptron."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A GPT that returns its own logits, flattened for the loss."""

    def __init__(self, words, width, layers, heads, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def gpt():
    tokens = torch.randint(50304, (16, 1024 + 1))
    return Gpt(50304, 1024, 24, 16, 1024), (tokens[:, :-1], tokens[:, 1:]), next_token_loss, adamw


class Recommender(nn.Module):
    """Embeddings of categories, summed with a few numbers, and a small perceptron."""

    def __init__(self, categories, width, fields):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(categories, width) for _ in range(fields))
        self.mlp = nn.Sequential(nn.Linear(width * fields, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.head = nn.Linear(256, 1)

    def forward(self, categories):
        found = [table(column) for table, column in zip(self.tables, categories.unbind(1), strict=True)]
        return self.head(self.mlp(torch.cat(found, 1))).squeeze(1)


def recommender():
    data = torch.randint(200_000, (8192, 16)), torch.rand(8192)
    return Recommender(200_000, 64, 16), data, nn.BCEWithLogitsLoss(), sgd


class Classifier(nn.Module):
    """A transformer that reads texts of uneven lengths, padded with zeros, and sorts them into classes."""

    def __init__(self, words, width, layers, heads, classes):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        padding = tokens == 0
        read = self.layers(self.words(tokens), src_key_padding_mask=padding)
        # The mean over a text's own words: one over all places would depend on the longest text of the batch.
        words = (~padding).sum(1, keepdim=True)
        return self.head(read.masked_fill(padding.unsqueeze(-1), 0).sum(1) / words)


def padded(samples):
    texts, classes = zip(*samples, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(classes)


def uneven():
    """Most texts are short and a few are long, as in most collections of text."""
    lengths = (torch.randn(4096).exp() * 1024 / 8).long().clamp(4, 1024).tolist()
    data = [(torch.randint(1, 30000, (length,)), place % 10) for place, length in enumerate(lengths)]
    loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=padded, drop_last=True)
    return Classifier(30000, 768, 8, 12, 10), loader, nn.CrossEntropyLoss(), adamw
