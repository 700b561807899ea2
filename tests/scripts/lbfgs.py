"""An optimizer that calls a closure."""

import torch
from torch import nn

x = torch.linspace(-1, 1, 32).unsqueeze(1)
y = x**3
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def fit(epochs):
    for epoch in range(epochs):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if epoch % 10 == 0:
            print(epoch, float(loss.detach()))


fit(400)
