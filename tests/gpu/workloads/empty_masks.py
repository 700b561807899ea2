"""An encoder of BERT-base's size over texts of one length, whose attention mask of ones masks nothing."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import advisor

LENGTH, BATCH, TEXTS, VOCABULARY, WIDTH, HEADS, LAYERS, CLASSES = 1024, 8, 512, 30522, 768, 12, 12, 4
CAPTURED = {"precision.autocast": "bfloat16", "step.cuda_graph": True}
STACK = {**CAPTURED, "compile.mode": "default", "optimizer.implementation": "fused"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.first(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.back(functional.gelu(self.wide(self.second(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids) + self.places.weight
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, 0])


def workload(current):
    mask = torch.ones(LENGTH, dtype=torch.long)
    ids, labels = torch.randint(VOCABULARY, (TEXTS, LENGTH)), torch.randint(CLASSES, (TEXTS,))
    texts = [
        {"input_ids": one, "attention_mask": mask, "labels": label} for one, label in zip(ids, labels, strict=True)
    ]
    data = DataLoader(texts, batch_size=BATCH, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True)
    return advisor.Workload(
        model=Encoder(),
        data=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        current=current,
    )


def captured():
    return workload(CAPTURED)


def stack():
    return workload(STACK)
