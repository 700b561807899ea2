"""Loops that read their batches with ``next``: once a round they are fed, else they read by themselves."""

import asyncio
import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from scripts.steps import batches

OWN_STEP = (
    "loss = (model(x) - y).abs().mean(); loss.backward(); nn.utils.clip_grad_value_(model.parameters(), 9); "
    "optimizer.step()"
)
AGAIN = """
def again(loader):
    while True:
        for batch in loader:
            yield batch
"""
ONCE = {
    "a while loop": """
        batches, count = iter(loader), 0
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            OWN
            seen.append((count, int(x[0])))
            count += 1
    """,
    "a count": """
        batches = again(loader)
        for count in range(5):
            x, y = next(batches)
            OWN
            seen.append((count, int(x[0])))
    """,
    "a generator that the loop goes through": """
        def logged(batches, every):
            for count, batch in enumerate(batches):
                yield count, batch
        for epoch in range(3):
            for count, (x, y) in logged(loader, 10):
                OWN
                seen.append((count, int(x[0])))
    """,
    "a generator that waits": """
        import asyncio
        async def read():
            for batch in again(loader):
                yield batch
        async def main():
            async for x, y in read():
                OWN
                seen.append((0, int(x[0])))
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("form", ONCE)
def test_one_batch_a_round_is_the_loaders(form, script):
    loop, names = script(AGAIN, ONCE[form].replace("OWN", OWN_STEP))
    assert loop.data is names["loader"], "so its workers are the script's, and can be tuned"
    names["seen"].clear()
    batches(loop, 8)
    assert [first for _, first in names["seen"]] == list(range(0, 64, 8))
    batches(loop, 2)
    assert [first for _, first in names["seen"][8:]] == [0, 8]
    asyncio.run(asyncio.sleep(0))  # the script's event loop stays its own


NAMED = {
    "a bar": "tqdm(loader)",
    "a count": "enumerate(loader)",
    "a bar around a count": "tqdm(enumerate(loader), total=8)",
    "an iterator": "iter(loader)",
}


@pytest.mark.parametrize("form", NAMED)
def test_a_name_for_what_reads_the_loader_goes_on_after_its_epoch(form, script):
    """As in YOLOv5: `pbar = enumerate(train_loader)`, and then `pbar = tqdm(pbar)`."""
    if "bar" in form:
        pytest.importorskip("tqdm")
    item = "count, (x, y)" if "count" in form else "x, y"
    loop, names = script(f"""
{"from tqdm import tqdm" if "bar" in form else ""}
for epoch in range(3):
    count, rounds = None, {NAMED[form]}
    for {item} in rounds:
        {OWN_STEP}
        seen.append((count, int(x[0])))
""")
    assert loop.data is names["loader"]
    names["seen"].clear()
    batches(loop, 8)
    batches(loop, 2)
    assert [first for _, first in names["seen"]] == [*range(0, 64, 8), 0, 8]
    if "count" in form:
        assert [count for count, _ in names["seen"]] == [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]


def test_the_loop_that_reads_the_batch_is_the_step_and_not_one_within_it(script):
    """As StyleGAN's phases: several updates to a batch, made in a loop of their own."""
    loop, names = script(
        AGAIN,
        f"""
        batches, count = again(loader), 0
        while True:
            x, y = next(batches)
            for phase, every in (("main", 1), ("penalty", 4)):
                if count % every == 0:
                    {OWN_STEP}
                    seen.append((phase, int(x[0])))
            count += 1
    """,
    )
    assert loop.data is names["loader"]
    names["seen"].clear()
    batches(loop, 3)
    assert names["seen"][-2:] == [("main", 8), ("main", 16)]


def test_each_update_of_a_critic_before_one_of_a_generator_is_a_step(script):
    """As of a Wasserstein GAN: the generator's update is a part of the step behind which it stands."""
    loop, names = script(
        AGAIN,
        """
        def main():
            batches, other = again(loader), nn.Linear(1, 1)
            rarely = torch.optim.SGD(other.parameters(), lr=1e-4)
            for count in range(100):
                for _ in range(3):
                    x, y = next(batches)
                    OWN
                rarely.zero_grad(); other(x).abs().mean().backward(); rarely.step()
                seen.append(count)
        main()
    """.replace("OWN", OWN_STEP),
    )
    assert loop.data is names["loader"]
    names["seen"].clear()
    batches(loop, 8)
    assert len(names["seen"]) == 3


STAGES = """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(3):
        x, y = next(batches)
        STEP
        seen.append(epoch)
    for epoch in range(3):
        STEP
"""


@pytest.mark.parametrize("head", ["for seed in range(5):", "def train(seed):"])
def test_a_run_that_makes_its_optimizer_is_no_step(head, script):
    """As of several seeds or folds, with a few epochs in two stages each."""
    calls = "for seed in range(5):\n    train(seed)\n" * ("def" in head)
    loop, names = script(AGAIN, "\nbatches = again(loader)\n", head + STAGES, calls)
    names["seen"].clear()
    batches(loop, 2)
    assert len(names["seen"]) == 2


def test_the_loops_own_count_goes_round(script):
    loop, names = script(AGAIN, ONCE["a count"].replace("OWN", OWN_STEP))
    names["seen"].clear()
    batches(loop, 8)
    assert [count for count, _ in names["seen"]] == [1, 2, 3, 4, 0, 1, 2, 3]


SEVERAL = {
    "an inner loop": "for _ in range(2): x, y = next(batches); seen.append(int(x[0]))",
    "a comprehension": "both = [next(batches) for _ in range(2)]; x, y = both[1]; seen += [int(a[0]) for a, _ in both]",
    "two lines": """x, y = next(batches); seen.append(int(x[0]))
            x, y = next(batches); seen.append(int(x[0]))""",
}


@pytest.mark.parametrize("form", SEVERAL)
def test_each_of_several_batches_of_a_round_is_a_step(form, script):
    loop, names = script(
        AGAIN,
        f"""
        batches = again(loader)
        while True:
            {SEVERAL[form]}
            {OWN_STEP}
    """,
    )
    assert loop.data is names["loader"]
    names["seen"].clear()
    batches(loop, 4)
    assert names["seen"] == [0, 8, 16, 24]


def test_what_the_loop_reads_by_itself_has_the_loaders_workers(script):
    loop, names = script(
        AGAIN,
        f"""
        from torch.utils.data import Dataset, get_worker_info
        class Places(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                return torch.ones(1) * (get_worker_info() is not None)
        others = again(DataLoader(Places(), batch_size=8, num_workers=1))
        for x, y in loader:
            {OWN_STEP}
            with torch.no_grad():
                seen.append(bool(next(others).all()))
    """,
    )
    assert names["seen"] == [False], "one step while it is watched needs no workers"
    names["seen"].clear()
    batches(loop, 3)
    assert names["seen"] == [True] * 3


def test_an_evaluation_reads_the_loader_itself_to_its_end(script):
    loop, names = script(f"""
        for x, y in loader:
            {OWN_STEP}
            with torch.no_grad():
                seen.append([int(x[0]) for x, _ in loader])
    """)
    batches(loop, 2)
    assert names["seen"] == [list(range(0, 64, 8))] * 3


def test_the_loop_of_a_library_is_run_as_it_is(script, tmp_path):
    """As of Ignite's engine, which calls a function of the script's for each batch."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/a_trainer.py").write_text(
        "def fit(update, loader):\n    for batch in loader:\n        update(*batch)\n"
    )
    loop, names = script(f"""
        import sys
        sys.path.append("{tmp_path}/site-packages")
        from a_trainer import fit
        def update(x, y):
            {OWN_STEP}
            seen.append(int(x[0]))
        fit(update, loader)
    """)
    names["seen"].clear()
    batches(loop, 8)
    assert names["seen"] == [*range(0, 64, 8)]
    assert {place.file for place in loop.places} == {str(tmp_path / "train.py")}


def test_nothing_stays_replaced_after_a_round(script):
    replaced = [(type(iter(DataLoader([1]))), "__next__"), (DataLoader, "__iter__"), (torch.Tensor, "backward")]
    before = [getattr(*one) for one in replaced]
    loop, _ = script(AGAIN, ONCE["a while loop"].replace("OWN", OWN_STEP))
    loop.step(next(iter(itertools.islice(loop.data, 1))))
    assert [getattr(*one) for one in replaced] == before
