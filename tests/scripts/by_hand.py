"""Truncated backpropagation through time without an optimizer: the weights are updated in the loop itself."""

import torch
from torch import nn

LENGTH, RATE = 5, 0.1
torch.manual_seed(0)
signal = torch.sin(torch.arange(400.0) / 7).reshape(-1, 4, 1)
model, head, criterion = nn.RNN(1, 8), nn.Linear(8, 1), nn.MSELoss()


def train():
    hidden, total = torch.zeros(1, 4, 8), 0.0
    for batch, start in enumerate(range(0, len(signal) - LENGTH - 1, LENGTH)):
        inputs, targets = signal[start : start + LENGTH], signal[start + 1 : start + 1 + LENGTH]
        model.zero_grad()
        head.zero_grad()
        output, hidden = model(inputs, hidden.detach())
        loss = criterion(head(output), targets)
        loss.backward()
        for parameter in (*model.parameters(), *head.parameters()):
            parameter.data.add_(parameter.grad, alpha=-RATE)
        total += loss.item()
        if batch % 10 == 9:
            print(f"{batch} batches, loss {total / 10:.3f}")
            total = 0.0


for _ in range(100_000):
    train()
