"""`while True`, batches from an array, several small batches an update, clipping; as in nanoGPT."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

grad_steps, block, batch_size, max_iters, vocabulary = 2, 8, 4, 600, 32
tokens = torch.randint(vocabulary, (512,))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, vocabulary)

    def forward(self, idx, targets=None):
        logits = self.head(self.block(self.embed(idx)))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def get_batch():
    starts = torch.randint(len(tokens) - block - 1, (batch_size,))
    x = torch.stack([tokens[i : i + block] for i in starts])
    return x, torch.stack([tokens[i + 1 : i + 1 + block] for i in starts])


def get_lr(it):
    return 1e-3 * min(1.0, (it + 1) / 100)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
iter_num = 0
X, Y = get_batch()
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num == 0:
        model.eval()
        with torch.no_grad():
            print("val", model(*get_batch())[1].item())
        model.train()
    for _ in range(grad_steps):
        with nullcontext():
            logits, loss = model(X, Y)
            loss = loss / grad_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
