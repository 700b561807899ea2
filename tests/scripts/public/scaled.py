"""As the recipe for automatic mixed precision: accumulation, a scaler, clipping, and a class around all of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, accumulate=2):
        self.device = "cpu"
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.model = self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler(self.device, enabled=False)
        self.loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 1)), 8, True)
        self.accumulate = accumulate

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            for i, (x, y) in enumerate(self.loader):
                x, y = x.to(self.device), y.to(self.device)
                prediction = self.model(x)
                loss = nn.functional.mse_loss(prediction, y) / self.accumulate
                self.scaler.scale(loss).backward()
                if (i + 1) % self.accumulate == 0:
                    self.scaler.unscale_(self.optimizer)
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad(set_to_none=True)
                print(f"loss {loss.item():.6f}")


torch.manual_seed(3)
Trainer().fit(epochs=2)
