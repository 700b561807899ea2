"""Loops that read no loader: their parts, fed by the statements that make a batch."""

import pytest
import torch
from torch.nn import functional

from scripts.steps import step_of

GIVEN = """
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
UPDATE = """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
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
    loop, names = script(GIVEN + START + "for step in range(400):" + body + UPDATE)
    assert loop.step is None
    assert "its batches as the loop makes them" in loop.notes[0]
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
        GIVEN
        + START
        + "for step in range(400):\n    for _ in range(1):\n        _, loss = model(x, y)\n        loss = loss / 1\n"
        "        x, y = get_batch()\n        loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()"
    )
    assert loop.step is None
    assert len({float(batch[0][0]) for _, batch in zip(range(5), loop.data, strict=False)}) > 1


def test_the_item_of_the_loop_is_part_of_its_batches(script):
    loop, names = script(
        GIVEN
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
    loop, _ = script(GIVEN + START + "for step in range(400):" + body + UPDATE)
    assert loop.step is not None


@pytest.mark.parametrize(
    ("behind", "said"),
    [("", "is not measured"), ("nn.utils.clip_grad_value_(model.parameters(), 1e9)", "runs as it is")],
)
def test_an_optimizer_of_the_loop_around_is_named(behind, said, script):
    """As of a Wasserstein GAN: several updates of the critic, then one of the generator."""
    loop, _ = script(f"""{GIVEN}
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
