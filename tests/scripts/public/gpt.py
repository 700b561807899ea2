"""As nanoGPT: configuration at the top, batches made by a function, accumulation, a scaler that may be off."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

batch_size, block_size, max_iters = 8, 16, 12
gradient_accumulation_steps = 2
grad_clip = 1.0
device = 'cpu'
dtype = 'float32'  # 'float32', 'bfloat16', or 'float16'
torch.manual_seed(1337)
device_type = 'cuda' if 'cuda' in device else 'cpu'
ptdtype = {'float32': torch.float32, 'bfloat16': torch.bfloat16}[dtype]
ctx = nullcontext() if dtype == 'float32' else torch.autocast(device_type=device_type, dtype=ptdtype)
tokens = torch.randint(32, (4000,))


def get_batch(split):
    ix = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([tokens[i:i + block_size] for i in ix])
    y = torch.stack([tokens[i + 1:i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(32, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(24, 32)

    def forward(self, idx, targets=None):
        logits = self.lm_head(self.block(self.wte(idx)))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, 32), targets.view(-1))
        return logits, loss


model = GPT()
model.to(device)
scaler = torch.amp.GradScaler(device_type, enabled=(dtype == 'float16'))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
iter_num = 0
X, Y = get_batch('train')  # fetch the very first batch
while True:
    lr = 1e-3 * min(1, (iter_num + 1) / 4)
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps  # scale the loss to account for gradient accumulation
        # immediately async prefetch next batch while model is doing the forward pass on the GPU
        X, Y = get_batch('train')
        # backward pass, with gradient scaling if training in fp16
        scaler.scale(loss).backward()
    # clip the gradient
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
    iter_num += 1
    if iter_num > max_iters:
        break
