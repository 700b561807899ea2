"""A script with its own class that trains and keeps state in its attributes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, lr):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=lr)
        self.criterion = nn.SmoothL1Loss()
        self.step_number, self.losses = 0, []

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        prediction = self.model(x)
        loss = self.criterion(prediction, y) + 1e-4 * sum(p.pow(2).sum() for p in self.model.parameters())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, epochs):
        for _ in range(epochs):
            for batch in self.loader:
                self.losses.append(self.train_step(batch))
                self.step_number += 1


if __name__ == "__main__":
    dataset = TensorDataset(torch.randn(48, 6), torch.randn(48, 2))
    Trainer(nn.Linear(6, 2), DataLoader(dataset, batch_size=12, shuffle=True), lr=1e-2).fit(300)
