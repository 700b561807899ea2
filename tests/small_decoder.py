"""A small transformer block, and its steps under settings: applied, exported, by a recipe's code."""

import pytest
import torch
from exported_module import module_of
from torch import nn

from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

CATALOG = load_catalog()
CPU = torch.device("cpu")


class Decoder(nn.Module):
    """Attention, normalization and a product: a transformer's block in small."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)

    def forward(self, inputs):
        queries, keys, values = (
            part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(inputs).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return self.head(self.norm(inputs + attended.transpose(1, 2).flatten(2)).mean(1))


def parts(mode=Mode.TRAIN, model=None):
    torch.manual_seed(0)
    model = (model or Decoder()).train(mode is Mode.TRAIN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if mode is Mode.TRAIN else None
    return Components(model, optimizer, None, StepPlan(mode, "cpu"), batch_size=8)


def batches(count=5):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 16, 32, generator=generator), torch.randint(4, (8,), generator=generator)) for _ in range(count)
    ]


def applied(settings, mode=Mode.TRAIN, model=None):
    components = parts(mode, model)
    apply_settings(CATALOG, components, settings)
    return make_step(components, nn.functional.cross_entropy if mode is Mode.TRAIN else None)


def exported(settings, mode=Mode.TRAIN, model=None):
    module = module_of(CATALOG, settings, mode)
    components = parts(mode, model)
    prepared, optimizer, _ = module.prepare(components.model, components.optimizer)
    if mode is Mode.TRAIN:
        return module.train_step(prepared, optimizer, nn.functional.cross_entropy)
    return module.infer_step(prepared)


both_steps = pytest.mark.parametrize("step_of", [applied, exported], ids=["applied", "exported"])


def losses(step):
    return [step(batch).item() for batch in batches()]


def by_apply(recipe_id, value, components):
    CATALOG[recipe_id].apply(components, value)
    return components.model, components.optimizer


def by_code(recipe_id, value, components):
    inputs, targets = batches(1)[0]
    namespace = {
        "torch": torch,
        "model": components.model,
        "optimizer": components.optimizer,
        "device": CPU,
        "inputs": inputs,
        "targets": targets,
        "loss_fn": nn.functional.cross_entropy,
    }
    exec(compile(CATALOG[recipe_id].code(value), recipe_id, "exec"), namespace)
    return namespace["model"], namespace["optimizer"]


both_ways = pytest.mark.parametrize("effect", [by_apply, by_code], ids=["apply", "code"])
