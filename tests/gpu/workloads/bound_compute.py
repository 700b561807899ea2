"""Four large square layers on a batch as large, in float32: a step that multiplies matrices.

The layers are 8192 wide where there is a GPU and 1024 where there is none.
"""

import torch
from torch import nn

LAYERS = 4


def build():
    width = 8192 if torch.cuda.is_available() else 1024
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)])
    batch = (torch.randn(width, width), torch.randn(width, width))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
