"""Loops whose rounds differ: what one round shows is not taken for all of them."""

import ast
import textwrap

import pytest

from advisor.python.trees import bound_in
from advisor.workloads.scripts.loops import varies
from scripts.steps import batches

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
}


def is_varying(statements):
    loop = ast.parse("for number, (x, y) in enumerate(loader):\n" + textwrap.indent(statements, "    ")).body[0]
    changing = bound_in(loop) | {"epoch", "self.step", "p"}
    return any(varies(one, changing) for one in loop.body)


@pytest.mark.parametrize("statements", VARYING.values(), ids=VARYING)
def test_what_some_rounds_do_otherwise_varies(statements):
    assert is_varying(statements)


@pytest.mark.parametrize("statements", ALIKE.values(), ids=ALIKE)
def test_what_all_rounds_do_alike_does_not(statements):
    assert not is_varying(statements)


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
    assert loop.clip_norm == 1.0
