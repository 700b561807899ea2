"""Loops whose rounds differ: what one round shows is not taken for all of them."""

import ast

import pytest

from advisor.workloads.scripts.loops import branch_of_the_loss
from scripts.steps import batches

ROUND = """
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
UPDATE = "optimizer.step()"
VARYING = {
    "drawn": "if random.random() < p:\n    x = flipped(x)",
    "counted": "if epoch > 3:\n    x = x + noise",
    "counted by an object": "if self.step % 2:\n    x = x + noise",
    "in place": "if number % 2:\n    x[:, 0] = 0",
    "a method in place": "if number % 2:\n    x.mul_(2)",
    "in an expression": "x = flipped(x) if random.random() < p else x",
    "of what the batch is made of": "lam = 1.0\nif random.random() < p:\n    lam = 0.5\nx = lam * x",
}
ALIKE = {
    "an option": "if args.flip:\n    x = flipped(x)",
    "the form of a batch": "if x.dim() == 1:\n    x = x[:, None]",
    "a remainder of its form": "if x.size(-1) % 2 or x.ndim % 2:\n    x = padded(x)",
    "the kind of a batch": "if isinstance(x, list):\n    x = x[0]",
    "a rate": "if number < warmup:\n    rate = number / warmup\nfor group in groups:\n    group['lr'] = rate",
    "gradients": "if number % 2:\n    model.clip_grad_norm_(1.0)",
    "a message": "if number % 50 == 0:\n    print(number)",
}


def branch(statements):
    """The branch that is found in a loop with some statements in front of its step."""
    body = "".join(f"    {line}\n" for line in statements.splitlines())
    [loop] = ast.parse(f"for number, (x, y) in enumerate(loader):\n{body}{ROUND}").body
    line = next(part.lineno for part in loop.body if ast.unparse(part) == UPDATE)
    [around] = ast.parse(f"for epoch in range(9):\n    {ast.unparse(loop).replace(chr(10), chr(10) + '    ')}").body
    return branch_of_the_loss(loop.body, line, [loop, around])


@pytest.mark.parametrize("statements", VARYING.values(), ids=VARYING)
def test_a_branch_that_changes_the_loss_of_some_rounds_is_found(statements):
    assert branch(statements) is not None


@pytest.mark.parametrize("statements", ALIKE.values(), ids=ALIKE)
def test_a_branch_that_all_rounds_take_or_that_the_loss_does_not_depend_on_is_none(statements):
    assert branch(statements) is None


def test_an_update_in_every_second_round_is_no_branch_of_the_loss():
    [loop] = ast.parse(
        "for number, (x, y) in enumerate(loader):\n    loss = f(x)\n    loss.backward()\n"
        "    if number % 2:\n        loss = loss.item()\n        optimizer.step()\n"
    ).body
    assert branch_of_the_loss(loop.body, 6, [loop]) is None


def test_a_term_that_is_added_later_is_measured_with_the_body(script):
    loop, _names = script("""
        count = 0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            if count >= 2:
                loss = loss + 1000
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += 1
    """)
    assert loop.step is not None
    assert any("not computed alike in all rounds" in note for note in loop.notes)
    assert [loss > 1000 for loss in batches(loop, 3)] == [False, True, True]


def test_a_branch_in_what_the_loop_calls_counts(script):
    loop, _ = script("""
        import random
        def train(batch):
            x, y = batch
            if random.random() < -1:
                x = 2 * x
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for batch in loader:
            train(batch)
    """)
    assert loop.step is not None
