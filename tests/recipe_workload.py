"""A small workload that any recipe may change, and its code run on it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import AdvisorError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


def components(mode=Mode.TRAIN, device="cpu", data="loader"):
    torch.manual_seed(0)
    model = Net().to(device).train(mode is Mode.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if mode is Mode.TRAIN else None
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 2
    batches = {
        "loader": DataLoader(TensorDataset(images, labels), batch_size=4),
        "batch": (images[:4], labels[:4]),
        "callable": lambda size: (images[:size], labels[:size]),
    }
    return Components(model, optimizer, batches[data], StepPlan(mode=mode, device=device), batch_size=4)


def namespace_of(workload):
    device = torch.device(workload.plan.device)
    # Not by the workload's own loader: its workers take a tenth of a second to start.
    inputs, targets = next(iter(DataLoader(workload.data.dataset, batch_size=workload.batch_size)))
    return {
        "torch": torch,
        "model": workload.model,
        "optimizer": workload.optimizer,
        "loader": workload.data,
        "loss_fn": nn.CrossEntropyLoss(),
        "device": device,
        "inputs": inputs.to(device),
        "targets": targets.to(device),
    }


def run_code(recipe, value, workload):
    namespace = namespace_of(workload)
    exec(compile(recipe.code(value), f"<{recipe.id}>", "exec"), namespace)
    return namespace


def refusal(recipe, value, workload):
    """The reason that a recipe does not apply a value to a workload; empty if it does. The workload may be changed."""
    try:
        recipe.apply(workload, value)
    except (AdvisorError, RuntimeError, ValueError, ImportError) as error:
        return str(error)
    return ""


def mode_for(recipe):
    return Mode.TRAIN if Mode.TRAIN in recipe.modes else Mode.INFER
