"""Five training steps that no CUDA graph captures as they are written: for their masks, their loss, or autocast."""

import torch
import torchvision
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional

WORDS = 16000


class Translator(nn.Module):
    """PyTorch's transformer, with its causal mask made on the host in each step."""

    def __init__(self, width=512):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=0)
        self.layers = nn.Transformer(width, 8, 4, 4, 2048, 0.1, batch_first=True)
        self.last = nn.Linear(width, WORDS)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(source.device)
        hidden = self.layers(
            self.embed(source),
            self.embed(target),
            tgt_mask=mask,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
        )
        return self.last(hidden)


def translation():
    model, (source, target) = Translator(), torch.randint(1, WORDS, (2, 64, 64))
    source[:, 50:], target[:, 56:] = 0, 0

    def loss(output, batch):
        scores, words = output[:, :-1].flatten(0, 1), batch["target"][:, 1:].flatten()
        return functional.cross_entropy(scores, words, ignore_index=0)

    return model, {"source": source, "target": target}, loss, torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))


class Recogniser(nn.Module):
    """Convolutions and a bidirectional LSTM over frames of speech."""

    def __init__(self, width=256, hidden=384, letters=64):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(80, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 2, 2), nn.GELU()
        )
        self.recurrent = nn.LSTM(width, hidden, 3, batch_first=True, bidirectional=True, dropout=0.1)
        self.last = nn.Linear(2 * hidden, letters)

    def forward(self, features):
        hidden, _ = self.recurrent(self.convolutions(features).transpose(1, 2))
        return self.last(hidden).log_softmax(-1)


def speech():
    """CTC reads the lengths on the host."""
    model = Recogniser()
    batch = {
        "features": torch.randn(16, 80, 800),
        "targets": torch.randint(1, 64, (16, 50)),
        "frames": torch.full((16,), 200),
        "letters": torch.randint(20, 50, (16,)),
    }

    def loss(output, batch):
        lengths = batch["frames"], batch["letters"]
        return functional.ctc_loss(output.transpose(0, 1), batch["targets"], *lengths, zero_infinity=True)

    return model, batch, loss, torch.optim.AdamW(model.parameters(), lr=3e-4)


class Detector(nn.Module):
    """A DETR: a ResNet-50, an encoder and a decoder of three layers, and fifty queries."""

    def __init__(self, classes=91, queries=50, width=256):
        super().__init__()
        self.backbone = nn.Sequential(*list(torchvision.models.resnet50().children())[:-2])
        self.project = nn.Conv2d(2048, width, 1)
        self.layers = nn.Transformer(width, 8, 3, 3, 1024, batch_first=True)
        self.queries = nn.Parameter(torch.rand(queries, width))
        self.rows, self.columns = (nn.Parameter(torch.rand(50, width // 2)) for _ in range(2))
        self.classes, self.boxes = nn.Linear(width, classes + 1), nn.Linear(width, 4)

    def forward(self, images):
        features = self.project(self.backbone(images))
        height, width = features.shape[-2:]
        columns = self.columns[:width][None].expand(height, -1, -1)
        rows = self.rows[:height][:, None].expand(-1, width, -1)
        places = torch.cat([columns, rows], -1).flatten(0, 1)
        queries = self.queries[None].expand(len(images), -1, -1)
        hidden = self.layers(features.flatten(2).transpose(1, 2) + places, queries)
        return {"logits": self.classes(hidden), "boxes": self.boxes(hidden).sigmoid()}


def matched(output, targets):
    """DETR's loss: the boxes are matched on the host."""
    total = 0.0
    for logits, boxes, target in zip(output["logits"], output["boxes"], targets, strict=True):
        with torch.no_grad():
            likely = logits.softmax(-1)[:, target["labels"]]
            costs = 5 * torch.cdist(boxes.float(), target["boxes"], p=1) - likely
        rows, columns = linear_sum_assignment(costs.cpu().numpy())
        labels = torch.full((len(logits),), logits.shape[-1] - 1, device=logits.device)
        labels[rows] = target["labels"][columns]
        distance = functional.l1_loss(boxes[rows], target["boxes"][columns])
        total = total + functional.cross_entropy(logits, labels) + 5 * distance
    return total / len(targets)


def detection():
    model = Detector()
    targets = [{"labels": torch.randint(0, 91, (7,)), "boxes": torch.rand(7, 4)} for _ in range(8)]
    batches = [(torch.rand(8, 3, 384, 384), targets)] * 4
    return model, batches, matched, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)


def _halved(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1), nn.ReLU())


def _doubled(inputs, outputs, last):
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), last)


class Variational(nn.Module):
    """A variational autoencoder of 64x64 images, which returns probabilities."""

    def __init__(self, size=128):
        super().__init__()
        self.encoder = nn.Sequential(_halved(3, 32), _halved(32, 64), _halved(64, 128), nn.Flatten())
        self.mean, self.log_variance = nn.Linear(128 * 64, size), nn.Linear(128 * 64, size)
        self.up = nn.Linear(size, 128 * 64)
        self.decoder = nn.Sequential(
            _doubled(128, 64, nn.ReLU()), _doubled(64, 32, nn.ReLU()), _doubled(32, 3, nn.Sigmoid())
        )

    def forward(self, images):
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(self.up(drawn).view(-1, 128, 8, 8)), mean, log_variance


def evidence(output, images):
    """Binary cross-entropy, which autocast refuses, and the divergence."""
    restored, mean, log_variance = output
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return functional.binary_cross_entropy(restored, images, reduction="sum") + divergence


def variational():
    model = Variational()
    return model, torch.rand(256, 3, 64, 64), evidence, torch.optim.Adam(model.parameters(), lr=1e-3)


class TwoViews(nn.Module):
    """A ResNet-18 for images of 32x32, and a projection, of two views of each image."""

    def __init__(self):
        super().__init__()
        self.backbone = torchvision.models.resnet18(num_classes=512)
        self.backbone.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.backbone.maxpool = nn.Identity()
        self.projection = nn.Sequential(nn.ReLU(), nn.Linear(512, 128))

    def forward(self, one, other):
        return functional.normalize(self.projection(self.backbone(torch.cat([one, other]))), dim=1)


def contrast(embedded, temperature=0.5):
    """Each view has to find the other view of its image; which that is, is written down on the host in each step."""
    count = len(embedded) // 2
    similar = embedded @ embedded.t() / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=embedded.device)
    other = torch.cat([torch.arange(count, 2 * count), torch.arange(count)]).to(embedded.device)
    return functional.cross_entropy(similar.masked_fill(itself, float("-inf")), other)


def contrastive():
    model = TwoViews()
    views = torch.randn(256, 3, 32, 32), torch.randn(256, 3, 32, 32)
    return model, views, contrast, torch.optim.SGD(model.parameters(), 0.3, momentum=0.9, weight_decay=1e-4)
