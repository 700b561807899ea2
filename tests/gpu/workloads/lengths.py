"""Sentences of many lengths, padded to the longest of their batch: shapes that change from step to step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BLOCKS, VOCABULARY, BATCH, SENTENCES = 512, 6, 5000, 64, 1024


class Sentences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(16, 257, (SENTENCES,), generator=generator)
        self.sentences = [torch.randint(VOCABULARY, (int(length),), generator=generator) for length in lengths]

    def __len__(self):
        return SENTENCES

    def __getitem__(self, index):
        return self.sentences[index], index % 2


def padded(samples):
    sentences = nn.utils.rnn.pad_sequence([sentence for sentence, _ in samples], batch_first=True)
    return sentences, torch.tensor([label for _, label in samples])


class Texts(nn.Module):
    """A classifier of padded texts whose encoder does not see the padding."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        block = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        is_there = tokens != 0
        hidden = self.blocks(self.tokens(tokens), src_key_padding_mask=~is_there)
        return self.head((hidden * is_there[..., None]).sum(1) / is_there.sum(1, keepdim=True))


def texts():
    loader = DataLoader(Sentences(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=padded)
    return Texts(), loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)
