"""Return the model, data, loss and optimizer of train.py, so that perf-advisor can measure them.

perf-advisor mymodel:build --config config.yaml
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from train import make_data, make_model


def build(config: dict[str, Any] | None = None) -> tuple[nn.Module, DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Return the parts of the training loop, with the values of ``config.yaml`` if it is given."""
    values = {"width": 32, "batch_size": 64, "num_workers": 0, "learning_rate": 1e-3} | (config or {})
    model = make_model(values["width"])
    loader = DataLoader(
        make_data(samples=2048), batch_size=values["batch_size"], num_workers=values["num_workers"], shuffle=True
    )
    return model, loader, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=values["learning_rate"])
