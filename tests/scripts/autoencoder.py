"""The target is the input; the label of the dataset is thrown away."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

autoencoder = nn.Sequential(nn.Linear(20, 4), nn.ReLU(), nn.Linear(4, 20))
train_dl = DataLoader(TensorDataset(torch.rand(60, 20), torch.zeros(60)), batch_size=20)
opt = torch.optim.Adam(autoencoder.parameters())

for _epoch in range(500):
    for img, _ in train_dl:
        reconstruction = autoencoder(img)
        loss = ((reconstruction - img) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
