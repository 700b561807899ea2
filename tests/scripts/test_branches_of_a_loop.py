"""Loops whose rounds differ: what one round shows is not taken for all of them."""

import pytest

from scripts.steps import batches


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


@pytest.mark.parametrize(
    ("branch", "is_plain"),
    [
        ("if random.random() < -1: x = 2 * x", False),
        ("if epoch > 3: x = x + 1", False),
        ("if Run.step % 2: x = x + 1", False),
        ("x = 2 * x if random.random() < -1 else x", False),
        ("if seen: x = x + 1", True),
        ("if x.dim() == 1 or x.size(-1) % 2 == 3: x = x[:, None]", True),
        ("if isinstance(x, list): x = x[0]", True),
    ],
)
def test_a_branch_in_what_the_loop_calls_counts_where_rounds_may_take_it_or_not(branch, is_plain, script):
    loop, _ = script(f"""
        import random
        class Run:
            step = 0
        def train(batch):
            x, y = batch
            {branch}
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for epoch in range(3):
            for batch in loader:
                train(batch)
    """)
    assert (loop.step is None) is is_plain


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
