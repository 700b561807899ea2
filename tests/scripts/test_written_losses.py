"""Loops that compute their loss in statements of their own: taken apart, with these statements as the loss."""

from __future__ import annotations

import pytest
import torch
from graphed_steps import graphed

from advisor.step.loss import LossForm, form_of
from advisor.workloads.scripts import plain
from scripts.steps import batches

GIVEN = """
import random
from contextlib import nullcontext
from types import SimpleNamespace
from torch.nn import functional as F

teacher = nn.Linear(1, 1).eval().requires_grad_(False)
other, count, h, phase, weight = nn.Linear(1, 1), 0, 1.0, "train", None
state, queue = SimpleNamespace(count=0), [torch.ones(8, 1)]

"""
UPDATE = """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "text",
    [
        "for x, y in loader:\n    loss = (model(x) - y).abs().mean()" + UPDATE,
        "for count, (x, y) in enumerate(loader):\n    noise = torch.randn_like(x)\n    guess = model(x + noise)\n"
        "    loss = F.mse_loss(guess, noise) + 0.1 * guess.pow(2).mean()" + UPDATE,
        "for x, y in loader:\n    loss = F.triplet_margin_loss(model(x), model(y), model(-x))\n"
        "    loss = loss + F.mse_loss(model(x), y, weight=weight)" + UPDATE,
        "for batch in loader:\n    x, y = batch\n    with torch.no_grad():\n        t = teacher(x)\n"
        "        t = t * 2\n    loss = F.mse_loss(model(x), t) + model.weight.abs().sum()" + UPDATE,
        "def trained(batch, scale=2):\n    x, y = batch\n    optimizer.zero_grad()\n    guess = model(x)\n"
        "    loss = F.mse_loss(guess, y) + scale * guess.abs().mean()\n    loss.backward()\n    optimizer.step()\n"
        "    return loss.item()\nfor batch in loader:\n    seen.append(trained(batch, scale=h))\n",
        "def trained(x, y):\n    optimizer.zero_grad()\n    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n"
        "for count, (x, y) in enumerate(loader):\n    if count >= 0:\n        trained(x, y)\n",
        "rounds = iter(loader)\nfor count in range(7):\n    x, y = next(rounds)\n    loss = (model(x) - y).abs().mean()"
        + UPDATE,
        "off = torch.amp.GradScaler('cpu', enabled=False)\nfor x, y in loader:\n"
        "    with torch.autocast('cpu', enabled=h > 2):\n        loss = (model(x) - y).abs().mean()\n"
        "    optimizer.zero_grad()\n    off.scale(loss).backward()\n    off.step(optimizer)\n    off.update()\n",
        "loaders = dict(train=loader)\nfor x, y in loaders[phase]:\n    optimizer.zero_grad()\n"
        "    with torch.set_grad_enabled(phase == 'train'), nullcontext():\n"
        "        loss = (model(x) - y).abs().mean()\n"
        "        if phase == 'train':\n            loss.backward()\n            optimizer.step()\n",
    ],
)
def test_they_are_the_loss_of_a_plain_loop(text, script, monkeypatch):
    torch.manual_seed(0)
    loop, names = script(GIVEN + text)
    assert loop.step is None
    assert form_of(loop.loss) is LossForm.MODEL_BATCH
    assert loop.model is names["model"]
    torch.manual_seed(1)
    found = batches(loop, 6)
    monkeypatch.setattr(plain, "written_parts", lambda *parts: None)
    torch.manual_seed(0)
    whole, _ = script(GIVEN + text)
    assert whole.step is not None
    torch.manual_seed(1)
    assert found == pytest.approx(batches(whole, 6)), "as a round of the loop computes it"


@pytest.mark.parametrize("context", ["torch.autocast('cpu', torch.bfloat16, enabled=count == 0)", "casting"])
def test_autocast_around_the_loss_is_a_setting_of_the_loop(context, script, monkeypatch):
    text = (
        "casting = torch.autocast('cpu', torch.bfloat16)\nfor x, y in loader:\n    x = x + 0.3\n"
        f"    with {context}:\n        loss = (model(x) - y).abs().mean()" + UPDATE
    )
    torch.manual_seed(0)
    loop, _ = script(GIVEN + text)
    assert loop.step is None
    assert loop.current["precision.autocast"] == "bfloat16"
    found = batches(loop, 6)
    monkeypatch.setattr(plain, "written_parts", lambda *parts: None)
    torch.manual_seed(0)
    whole, _ = script(GIVEN + text)
    assert whole.step is not None
    assert found == batches(whole, 6), "as the body of the loop computes it"
    loop.current.pop("precision.autocast")
    assert found != batches(loop, 6), "without the setting nothing is cast"


def test_autocast_around_the_loop_is_a_setting_of_it_too(script):
    text = "for x, y in loader:\n        loss = (model(x) - y).abs().mean()" + UPDATE.replace("\n", "\n    ")
    loop, _ = script(f"{GIVEN}with torch.autocast('cpu', torch.bfloat16):\n    {text}")
    assert (loop.step, loop.current["precision.autocast"]) == (None, "bfloat16")
    assert len(batches(loop, 2)) == 2
    assert not torch.is_autocast_enabled("cpu")


def test_a_part_that_is_kept_from_autocast_stays_so(script):
    loop, _ = script(
        GIVEN + "casting = torch.autocast('cpu', torch.bfloat16)\nfor x, y in loader:\n    with casting:\n"
        "        z = model(x + 0.3)\n        with torch.autocast('cpu', enabled=False):\n"
        "            loss = (model(x + 0.3) - z).abs().sum() + 1" + UPDATE
    )
    assert loop.step is None
    with torch.autocast("cpu", torch.bfloat16):
        assert loop.loss(loop.model, next(iter(loop.data))) > 1


@pytest.mark.parametrize(
    "body",
    [
        "\n    h = h * 0.9\n    loss = (model(x) * h).mean()",
        "\n    if float(x[0]) > 50: continue\n    loss = (model(x) - y).abs().mean()",
        "\n    loss = (model(other(x)) - y).abs().mean()",
        "\n    state.count += 1\n    loss = (model(x) * state.count).mean()",
        "\n    loss = nn.functional.mse_loss(model(x), y)\n    if count >= 2: loss = loss + 1000\n    count += 1",
    ],
)
def test_what_a_round_leaves_to_the_next_and_other_models_leave_the_body_whole(body, script):
    trained = "optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1e-4)\n" * ("other" in body)
    loop, _ = script(GIVEN + trained + "for x, y in loader:" + body + UPDATE)
    assert loop.step is not None


def test_a_round_of_several_batches_stays_whole(script):
    steps = "    for part in range(4):\n        x, y = next(rounds)\n        (model(x) - y).abs().mean().backward()\n"
    head = "rounds = iter(loader)\nfor step in range(9):\n    optimizer.zero_grad()\n"
    loop, _ = script(f"{GIVEN}{head}{steps}    optimizer.step()\n")
    assert loop.step is not None


@pytest.mark.parametrize(
    "body",
    [
        "h = (model(x) * h).mean(); loss = 2 * h; h = h.detach()",
        "loss = 2 * model(x * h).mean()",
        "x = x + state.count; z = model(x); loss = F.mse_loss(z, x); state.count = z.detach()",
        "z = model(x); loss = (z - queue[0]).abs().mean(); queue[0] = z.detach()",
    ],
)
def test_a_batch_that_a_model_made_leaves_the_body_whole(body, script):
    head = "for step in range(500):\n    x = torch.randn(8, 1)\n    h = float(h) * model.bias.item()\n"
    loop, _ = script(f"{GIVEN}h = torch.ones(())\n{head}    {body}{UPDATE}")
    assert loop.step is not None


OF_ARRAYS = """
class Reads(nn.Linear):
    def forward(self, rows):
        return super().forward(torch.LongTensor(rows).float())
model = Reads(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(500):
    rows = numbers.numpy()[:8].astype("int32")
    loss = 2 * model(rows).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
OF_ANOTHER_TYPE = """
loader = DataLoader(TensorDataset(numbers, torch.ones(64, 1, dtype=torch.long)), batch_size=8)
criterion = nn.BCEWithLogitsLoss()
for x, y in loader:
    y = y.float()
    optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("text", [OF_ARRAYS, OF_ANOTHER_TYPE], ids=["arrays", "a target of another type"])
def test_what_a_model_or_a_loss_is_given_stays_as_the_loop_gives_it(text, script):
    loop, _ = script(text)
    assert len(batches(loop, 2)) == 2


def test_a_graph_may_hold_them(script):
    text = "    guess = model(x)\n    loss = 0.5 * (guess - y).abs().mean() + other.weight.mean()"
    torch.manual_seed(0)
    loop, names = script(GIVEN + "for x, y in loader:\n" + text + UPDATE)
    data = [names["numbers"][at : at + 8] for at in range(0, 56, 4)]
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e-4, fused=True)
    step = graphed(loop.model, optimizer, loop.loss)
    found = [step((x, 2 * x)).item() for x in data]
    assert step.captured
    x = names["x"]
    expected = 0.5 * (loop.model(x) - names["y"]).abs().mean() + names["other"].weight.mean()
    assert float(step((x, names["y"]))) == pytest.approx(expected.item())
    assert len(set(found)) > 1


def test_the_branch_of_a_scaler_that_there_is_none_of_is_never_taken(script):
    """As of torchvision's references: the backward pass that was seen is the one of each round."""
    loop, _ = script("""
        scaler = None
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
            else:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    """)
    assert loop.step is None
    assert loop.clip_grad == 1.0
