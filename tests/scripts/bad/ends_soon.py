"""Ends its loop after three rounds."""

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    if step >= 3:
        break
    (model(torch.ones(4, 2)) ** 2).mean().backward()
    optimizer.step()
    step += 1
