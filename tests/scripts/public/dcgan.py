"""As the DCGAN example: two models, two optimizers, three backward passes a round."""

import torch
import torch.nn as nn

torch.manual_seed(999)
device = torch.device("cpu")
nz, ngf, ndf = 8, 4, 4
dataset = torch.utils.data.TensorDataset(torch.randn(48, 3, 8, 8), torch.zeros(48))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=12,
                                         shuffle=True, num_workers=0)


def weights_init(m):
    if isinstance(m, nn.Conv2d):
        torch.nn.init.normal_(m.weight, 0.0, 0.02)


netG = nn.Sequential(nn.ConvTranspose2d(nz, ngf, 4), nn.ReLU(True), nn.ConvTranspose2d(ngf, 3, 5), nn.Tanh()).to(device)
netG.apply(weights_init)
netD = nn.Sequential(nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ndf, 1, 4)).to(device)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

for epoch in range(2):
    for i, data in enumerate(dataloader, 0):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1.0, device=device)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        # train with fake
        fake = netG(torch.randn(real.size(0), nz, 1, 1, device=device))
        errD_fake = criterion(netD(fake.detach()).view(-1), torch.zeros_like(label))
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        print('[%d][%d] Loss_D: %.4f Loss_G: %.4f' % (epoch, i, errD_real + errD_fake, errG))
