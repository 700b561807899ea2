"""Two models and two optimizers in one loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    real_images = torch.randn(64, 12)
    loader = DataLoader(real_images, batch_size=16, drop_last=True)
    net_g, net_d = nn.Linear(4, 12), nn.Sequential(nn.Linear(12, 1), nn.Sigmoid())
    opt_g, opt_d = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (net_g, net_d))
    bce = nn.BCELoss()
    for _ in range(500):
        for i, real in enumerate(loader, 0):
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            net_d.zero_grad()
            fake = net_g(torch.randn(len(real), 4))
            loss_d = bce(net_d(real), ones) + bce(net_d(fake.detach()), zeros)
            loss_d.backward()
            opt_d.step()
            net_g.zero_grad()
            loss_g = bce(net_d(fake), ones)
            loss_g.backward()
            opt_g.step()
            if i % 50 == 0:
                print(loss_d.item(), loss_g.item())


if __name__ == "__main__":
    main()
