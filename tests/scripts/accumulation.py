"""A progress bar, and an update after every fourth batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

ACCUMULATE = 4


def run():
    model = nn.LSTM(6, 12, batch_first=True)
    head = nn.Linear(12, 2)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64, 5, 6), torch.randint(2, (64,))), batch_size=8)
    for epoch in range(200):
        progress = tqdm(loader, desc=f"epoch {epoch}", disable=True)
        for i, (x, y) in enumerate(progress):
            output, _ = model(x)
            loss = nn.functional.cross_entropy(head(output[:, -1]), y) / ACCUMULATE
            loss.backward()
            if (i + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
            progress.set_postfix(loss=loss.item())


if __name__ == "__main__":
    run()
