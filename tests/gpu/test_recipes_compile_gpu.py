"""The compile family and the small optimizer recipes on a real GPU, with generated code."""

import copy

import pytest
import torch
from exported_module import plain_losses
from torch import nn
from torch._dynamo.utils import counters

from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.graph import captured
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]
CATALOG = load_catalog()
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}
each_optimizer = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(nn.functional.gelu(self.a(self.norm(x))))


class Layers(nn.Module):
    """Twelve layers: 75 parameter tensors."""

    def __init__(self, make=Block):
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(12))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).mean(1)


def encoder_layers():
    return Layers(lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True))


def batches(count, lengths=(16,)):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, lengths[index % len(lengths)], 32, generator=generator).cuda(),
            torch.randint(4, (8,), generator=generator).cuda(),
        )
        for index in range(count)
    ]


def twin(make):
    torch.manual_seed(0)
    model = make().cuda().train()
    return model, copy.deepcopy(model)


def stepped(model, settings, make_optimizer=OPTIMIZERS["SGD"], **plan):
    plan = StepPlan(mode=Mode.TRAIN, device="cuda:0", **plan)
    components = Components(model, make_optimizer(model.parameters()), None, plan)
    apply_settings(CATALOG, components, settings)
    return captured(make_step(components, nn.CrossEntropyLoss())), components


# --- the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Layers, encoder_layers], ids=["own blocks", "PyTorch's blocks"])
@pytest.mark.parametrize("mode", ["none", "default", "reduce-overhead"])
def test_compiled_blocks_train_as_the_eager_model(make, mode):
    model, reference = twin(make)
    data = batches(8)
    expected = plain_losses(reference, OPTIMIZERS["SGD"](reference.parameters()), data)
    settings = {"compile.scope": "regional"} | ({} if mode == "none" else {"compile.mode": mode})
    step, components = stepped(model, settings)
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=1e-3)
    assert components.model is model
    # The first block may differ from the others in whether its input needs a gradient.
    assert 1 <= counters["frames"]["ok"] <= 2


@pytest.mark.parametrize("scope", ["model", "regional"])
def test_batches_of_several_lengths(scope):
    model, reference = twin(Layers)
    data = batches(6, lengths=(8, 12, 20))
    expected = plain_losses(reference, OPTIMIZERS["SGD"](reference.parameters()), data)
    step, _ = stepped(model, {"compile.scope": scope} if scope != "model" else {"compile.mode": "default"})
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=1e-3)


# --- the update -----------------------------------------------------------------------------------------------


def test_clipping_does_not_make_the_host_wait():
    model, _ = twin(Layers)
    step, _ = stepped(model, {}, clip_norm=0.1)
    data = batches(3)
    step(data[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in data[1:]:
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
