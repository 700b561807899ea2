"""GraphSAGE of PyTorch Geometric's on one fixed graph: gathers and scatters along edges."""

import torch
from torch import nn
from torch_geometric.nn import GraphSAGE

NODES, EDGES, FEATURES, WIDTH, LAYERS, CLASSES = 100_000, 1_000_000, 128, 256, 3, 40


def build():
    model = GraphSAGE(FEATURES, WIDTH, LAYERS, CLASSES, dropout=0.1)
    batch = (torch.randn(NODES, FEATURES), torch.randint(NODES, (2, EDGES)), torch.randint(CLASSES, (NODES,)))
    return model, batch, nn.CrossEntropyLoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-2)
