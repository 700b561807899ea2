"""Activation checkpointing."""

import copy

import pytest
import torch
from model_structures import applied, coded
from proposals import CATALOG
from torch import nn

from advisor.inlined.checkpointing import checkpoints_itself
from advisor.recipe.contract import torch_is_older


class Block(nn.Module):
    """Several inputs, keywords (one with a name that checkpoints know), dict and tuple outputs, dropout, a norm."""

    def __init__(self, width=16):
        super().__init__()
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, x, state, *, mask=None, debug=1.0):
        y = self.dropout(self.back(self.wide(self.norm(x)).square()))
        return {"x": x + y * mask * debug, "rest": (state + y.mean(), "text", None)}


class Stacked(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        state = x.sum()
        for block in self.blocks:
            found = block(x, state, mask=torch.ones_like(x), debug=0.5)
            x, state = found["x"], found["rest"][0]
        return self.head(x) * state


def training_steps(model, x, steps=5):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def wholly_frozen_blocks():
    model = Stacked()
    model.blocks.requires_grad_(False)
    return model


def shared_block():
    block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1))
    return nn.Sequential(block, nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)), block)


CHECKPOINTED = {
    "keywords, dicts and dropout": (Stacked, (8, 16)),
    "PyTorch's own layers": (encoder, (2, 5, 16)),
    "frozen blocks": (wholly_frozen_blocks, (8, 16)),
    "a block called twice": (shared_block, (8, 16)),
}


@pytest.mark.parametrize(("way", "name"), [*((applied, name) for name in CHECKPOINTED), (coded, "frozen blocks")])
def test_checkpointed_blocks_train_to_the_bit(way, name):
    build, shape = CHECKPOINTED[name]
    torch.manual_seed(0)
    model = build()
    x, before = torch.randn(shape), copy.deepcopy(model)
    changed = way("checkpointing", "blocks", model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert changed is model
    assert [name for name, _ in changed.named_modules()] == [name for name, _ in before.named_modules()]
    assert training_steps(changed, x) == training_steps(before, x)
    expected, found = before.state_dict(), changed.state_dict()
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert torch.equal(changed.eval()(x), before.eval()(x))


def saved_bytes(model, x):
    """The bytes of tensors kept for the backward pass, each counted once, without parameters."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().mean()
    kept = sum(size for place, size in saved.items() if place not in parameters)
    loss.backward()
    return kept


def test_checkpointed_blocks_keep_their_inputs_only():
    model, x = encoder(), torch.randn(8, 32, 16)
    usual = saved_bytes(model, x)
    applied("checkpointing", "blocks", model)
    assert saved_bytes(model, x) < usual / 5, "the inputs of three layers, and what the loss keeps"


def test_a_model_that_has_a_switch_of_its_own_is_switched_off_and_seen():
    class Switched(Stacked):
        gradient_checkpointing = True

        def gradient_checkpointing_disable(self):
            self.gradient_checkpointing = False

    model = Switched()
    assert checkpoints_itself(model)
    applied("checkpointing", "blocks", model)
    assert not any("forward" in vars(module) for module in model.modules())
    applied("checkpointing", "none", model)
    assert not model.gradient_checkpointing


@pytest.mark.compile
@pytest.mark.parametrize("regional", [False, True])
def test_checkpointed_blocks_can_be_compiled(regional):
    torch.manual_seed(0)
    model = Stacked()
    for block in model.blocks:
        block.dropout.p = 0.0
    before, x = copy.deepcopy(model), torch.randn(8, 16)
    applied("checkpointing", "blocks", model)
    for part in model.blocks if regional else [model]:
        part.compile(backend="aot_eager")
    assert training_steps(model, x) == pytest.approx(training_steps(before, x), rel=1e-4)
    for name, tensor in before.state_dict().items():
        if "running_var" in name or "tracked" in name:
            torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [applied, coded], ids=["apply", "code"])
def test_a_memory_budget_is_the_compilers(way):
    from torch._functorch import config

    try:
        way("checkpointing", "budget-0.5", Stacked())
        assert config.activation_memory_budget == 0.5
    finally:
        applied("checkpointing", "none", Stacked())
    assert config.activation_memory_budget == 1.0


@pytest.mark.parametrize(("installed", "refused"), [("2.6.0", True), ("2.9.1+cu128", True), ("2.10.0", False)])
def test_checkpoints_in_a_captured_step_are_refused_where_pytorch_cannot_capture_them(monkeypatch, installed, refused):
    monkeypatch.setattr("importlib.metadata.version", {"torch": installed}.get)
    asked_anew = torch_is_older.__wrapped__  # the installed version is asked for once a process
    monkeypatch.setattr("advisor.recipes.checkpointing.torch_is_older", asked_anew)
    graph = {"step.cuda_graph": True}
    assert bool(CATALOG.conflict({"memory.activation_checkpointing": "blocks", **graph})) is refused
    assert CATALOG.conflict({"memory.activation_checkpointing": "none", **graph}) is None
    assert CATALOG.conflict({"memory.activation_checkpointing": "budget-0.5", **graph}) is None
