"""A teacher that is not trained, a student that is, a loss of two parts, a dict as the batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"image": torch.full((3, 8, 8), index / 40), "label": index % 5}


teacher = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
student = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
opt = torch.optim.SGD(student.parameters(), lr=0.01, momentum=0.9)
T = 2.0
for _ in range(400):
    for batch in DataLoader(Samples(), batch_size=10):
        with torch.no_grad():
            soft = teacher(batch["image"])
        logits = student(batch["image"])
        loss = F.cross_entropy(logits, batch["label"])
        loss = loss + F.kl_div(F.log_softmax(logits / T, 1), F.softmax(soft / T, 1), reduction="batchmean") * T * T
        opt.zero_grad()
        loss.backward()
        opt.step()
