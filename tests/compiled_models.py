"""Models to compile or to trace, and the two ways in which a recipe changes one."""

import copy

import pytest
import torch
from proposals import CATALOG
from torch import nn

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.tuning import apply_settings


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Layers(nn.Module):
    def __init__(self, blocks, width=8):
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def own_blocks():
    return Layers(Block() for _ in range(5))


def pytorchs_blocks():
    return Layers(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4))


def sequential_blocks():
    return Layers(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))


def parts(model, mode=Mode.TRAIN, data=None, optimizer="SGD", **plan):
    model.train(mode is Mode.TRAIN)
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05) if mode is Mode.TRAIN else None
    return Components(model, made, data, StepPlan(mode=mode, device="cpu", **plan))


def applied(model, settings, mode=Mode.TRAIN, **options):
    components = parts(model, mode, **options)
    apply_settings(CATALOG, components, settings)
    return components


def by_apply(recipe_id, value, model, mode=Mode.TRAIN):
    return applied(model, {CATALOG[recipe_id].key: value}, mode).model


def by_code(recipe_id, value, model, mode=Mode.TRAIN):
    model.train(mode is Mode.TRAIN)
    namespace = {"torch": torch, "model": model, "device": torch.device("cpu")}
    exec(CATALOG[recipe_id].code(value), namespace)
    return namespace["model"]


both_ways = pytest.mark.parametrize("effect", [by_apply, by_code], ids=["apply", "code"])


def twin(make):
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


def gradients_of(model, inputs, seed=0):
    """Output and gradients, of the parameters and of the input, with random streams from a seed."""
    torch.manual_seed(seed)
    inputs = inputs.clone().requires_grad_()
    output = model(inputs)
    output.square().sum().backward()
    return output, [inputs.grad, *(p.grad for p in model.parameters())]


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
