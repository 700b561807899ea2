"""Loops that compute their loss, or make their batches, in statements of their own: taken apart by these."""

from __future__ import annotations

import pytest
import torch
from graphed_steps import graphed
from torch.nn import functional

from advisor.step.loss import LossForm, form_of
from advisor.workloads.scripts import plain
from scripts.steps import batches, step_of

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
    step = graphed(loop.model, torch.optim.SGD(loop.model.parameters(), lr=1e-4, fused=True), loop.loss)
    found = [step((x, 2 * x)).item() for x in data]
    assert step.captured
    x = names["x"]
    expected = 0.5 * (loop.model(x) - names["y"]).abs().mean() + names["other"].weight.mean()
    assert float(step((x, names["y"]))) == pytest.approx(expected.item())
    assert len(set(found)) > 1


def test_the_branch_of_a_scaler_that_there_is_none_of_is_never_taken(script):
    """As in torchvision's references: the observed backward pass runs in each round."""
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


# --- loops that read no loader, fed by the statements that make a batch ---------------------------------------

DRAWS = """
from contextlib import nullcontext
from torch.nn import functional as F

class Guesser(nn.Linear):
    def forward(self, x, target=None):
        guess = super().forward(x)
        return guess, None if target is None else F.mse_loss(guess, target)

rows = torch.randn(64, 1)
plain, model = model, Guesser(1, 1)
optimizer = torch.optim.SGD([*model.parameters(), *plain.parameters()], lr=1e-2)

def rate(step):
    return 1e-2 * min(1.0, (step + 1) / 100)

def get_batch(size=8):
    at = torch.randint(len(rows), (size,))
    return rows[at], 2 * rows[at]

def evaluate():
    with torch.no_grad():
        return model(*get_batch())

"""
START = "x, y = get_batch()\nscale = 1.0\n"
DRAWN = "\n    x, y = get_batch()\n    _, loss = model(x, y)"


@pytest.mark.parametrize(
    "body",
    [
        DRAWN,
        "\n    for group in optimizer.param_groups: group['lr'] = rate(step)" + DRAWN,
        "\n    if step % 100 == 0: evaluate()" + DRAWN,
        "\n    x, y = get_batch()\n    with nullcontext():\n        guess, loss = model(x, target=y)",
        "\n    if step % 100 == 0:\n        with torch.no_grad(): model(x, y)" + DRAWN,
        "\n    _, loss = model(x, y)\n    x, y = get_batch()",  # the next one, as nanoGPT makes it
        "\n    x, y = get_batch()\n    _, loss = model(*(x, y))",
        "\n    x, y = get_batch()\n    x = x * scale\n    _, loss = model(x, y)\n    scale = scale * 0.99",
        "\n    x = torch.randn(8, 1)\n    x.add_(1)\n    y = x * 2\n    loss = F.mse_loss(plain(x), y)",
        "\n    x, y = get_batch()\n    z = torch.randn_like(x)\n    x = x + z\n    loss = F.mse_loss(plain(x), y)",
    ],
)
def test_the_batches_are_made_by_the_statements_of_the_loop(body, script):
    loop, names = script(DRAWS + START + "for step in range(400):" + body + UPDATE)
    assert loop.step is None
    assert "on the batches that the loop makes" in loop.notes[0]
    step, given = step_of(loop), zip(range(5), loop.data, strict=False)
    firsts = set()
    for _, batch in given:
        x, y = batch.values() if isinstance(batch, dict) else batch
        expected = functional.mse_loss(loop.model.weight * x + loop.model.bias, y)
        assert float(step(batch)) == pytest.approx(float(expected))
        firsts.add(float(x[0]))
        assert torch.isin(y, 2 * names["rows"]).all() or "randn(8, 1)" in body
    assert len(firsts) == 5


def test_the_next_batch_may_be_made_between_the_loss_and_the_backward_pass(script):
    """As nanoGPT does, within a loop of one round."""
    loop, _ = script(
        DRAWS
        + START
        + "for step in range(400):\n    for _ in range(1):\n        _, loss = model(x, y)\n        loss = loss / 1\n"
        "        x, y = get_batch()\n        loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()"
    )
    assert loop.step is None
    assert len({float(batch[0][0]) for _, batch in zip(range(5), loop.data, strict=False)}) > 1


def test_the_item_of_the_loop_is_part_of_its_batches(script):
    loop, names = script(
        DRAWS
        + "for start in range(0, 64, 8):\n    x = rows[start : start + 8]\n    loss = F.mse_loss(plain(x), 2 * x)"
        + UPDATE
    )
    assert loop.step is None
    read = [x for (x,), _ in zip(loop.data, range(9), strict=False)]
    assert len({float(x[0]) for x in read}) == 8, "and the loop begins anew"
    assert {float(x[0]) for x in read} == {float(x) for x in names["rows"][::8]}


@pytest.mark.parametrize(
    "body",
    [
        "\n    x = plain(get_batch()[0]).detach()\n    _, loss = model(x, x)",  # a model makes it
        "\n    guess, loss = model(x, y)\n    x, y = guess.detach(), y",  # of what the model said
        "\n    for _ in range(2):\n        _, loss = model(x, y)\n        x, y = get_batch()",
        "\n    x, _ = get_batch()\n    with torch.no_grad():\n        y = plain(x)\n    _, loss = model(x, y)",
    ],
)
def test_batches_whose_making_cannot_be_taken_out_leave_the_body_whole(body, script):
    loop, _ = script(DRAWS + START + "for step in range(400):" + body + UPDATE)
    assert loop.step is not None


@pytest.mark.parametrize(
    ("behind", "said"),
    [("", "is not measured"), ("nn.utils.clip_grad_value_(model.parameters(), 1e9)", "runs as it is")],
)
def test_an_optimizer_of_the_loop_around_is_named(behind, said, script):
    """A Wasserstein GAN, for example, updates the critic several times, then the generator once."""
    loop, _ = script(f"""{DRAWS}
other = nn.Linear(1, 1)
rarely = torch.optim.AdamW(other.parameters())
for step in range(400):
    for _ in range(3):
        x, y = get_batch()
        _, loss = model(other(x).detach(), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        {behind}
    rarely.zero_grad(); other(get_batch()[0]).mean().backward(); rarely.step()
""")
    assert loop.notes[1:] == [f"updates by AdamW around this loop {said}"]
