"""Steps instead of epochs: batches are fetched with next(), and the loader begins anew where it ends."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(40, 5), torch.randn(40, 1)), batch_size=10, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100_000)
batches = iter(loader)
for step in range(100_000):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    loss = torch.nn.functional.huber_loss(model(x), y, delta=0.5)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
