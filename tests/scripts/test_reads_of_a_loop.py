"""Loops that read their batches in many ways: a step is a round that is fed the loader's next batch."""

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
EPOCH = list(range(0, 64, 8))
NAMED = """
    for epoch in range(3):
        rounds = {}
        for {} in rounds:
            OWN
            seen.append({})
"""
IN_A_BAR = f"\n    from tqdm import tqdm{NAMED}"
# Loops, the steps that are taken in each of some passes over the loader, and what they note.
LOOPS = {
    "a while loop": (
        """
        batches = iter(loader)
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            OWN
            seen.append(int(x[0]))
        """,
        (8, 2),
        [*EPOCH, 0, 8],
    ),
    "a generator that the loop goes through": (
        """
        def logged(batches, every):
            for count, batch in enumerate(batches):
                yield count, batch
        for epoch in range(3):
            for count, (x, y) in logged(loader, 10):
                OWN
                seen.append(int(x[0]))
        """,
        (8, 2),
        [*EPOCH, 0, 8],
    ),
    "a count of rounds, which goes round": (
        """
        batches = again(loader)
        for count in range(5):
            x, y = next(batches)
            OWN
            seen.append(count)
        """,
        (8,),
        [1, 2, 3, 4, 0, 1, 2, 3],
    ),
    # As in YOLOv5: `pbar = enumerate(train_loader)`, and then `pbar = tqdm(pbar)`.
    "a name for a bar": (IN_A_BAR.format("tqdm(loader)", "x, y", "int(x[0])"), (8, 2), [*EPOCH, 0, 8]),
    "a name for a count": (
        NAMED.format("enumerate(loader)", "count, (x, y)", "(count, int(x[0]))"),
        (8, 2),
        [*zip([1, 2, 3, 4, 5, 6, 7, 0], EPOCH, strict=True), (1, 0), (2, 8)],
    ),
    # As StyleGAN's phases. The loop that reads the batch is the step, and not the one within it.
    "several updates to a batch": (
        """
        batches, count = again(loader), 0
        while True:
            x, y = next(batches)
            for phase, every in (("main", 1), ("penalty", 4)):
                if count % every == 0:
                    OWN
                    seen.append((phase, int(x[0])))
            count += 1
        """,
        (3,),
        [("main", 0), ("main", 8), ("main", 16)],
    ),
    # As of a Wasserstein GAN: the generator's update is a part of the step behind which it stands.
    "several updates of a critic before one of a generator": (
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
        """,
        (8,),
        [0, 1, 2],
    ),
    # Each of several batches of a round is a step.
    "an inner loop": (
        """
        batches = again(loader)
        while True:
            for _ in range(2): x, y = next(batches); seen.append(int(x[0]))
            OWN
        """,
        (4,),
        [0, 8, 16, 24],
    ),
    "an evaluation, which reads the loader itself to its end": (
        """
        for x, y in loader:
            OWN
            with torch.no_grad():
                seen.append([int(x[0]) for x, _ in loader])
        """,
        (2,),
        [EPOCH, EPOCH],
    ),
}
REPLACED = [(type(iter(DataLoader([1]))), "__next__"), (DataLoader, "__iter__"), (torch.Tensor, "backward")]


@pytest.mark.parametrize("form", LOOPS)
def test_each_step_is_fed_the_loaders_next_batch(form, script):
    text, steps, noted = LOOPS[form]
    if "tqdm(" in text:
        pytest.importorskip("tqdm")
    before = [getattr(*one) for one in REPLACED]
    loop, names = script(AGAIN, text.replace("OWN", OWN_STEP))
    assert loop.data is names["loader"], "so its workers are the script's, and can be tuned"
    names["seen"].clear()
    for count in steps:
        batches(loop, count)
    assert names["seen"] == noted
    assert [getattr(*one) for one in REPLACED] == before


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
    """For example, a script trains several seeds or folds, each a few epochs in two stages."""
    calls = "for seed in range(5):\n    train(seed)\n" * ("def" in head)
    loop, names = script(AGAIN, "\nbatches = again(loader)\n", head + STAGES, calls)
    names["seen"].clear()
    batches(loop, 2)
    assert len(names["seen"]) == 2


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


def test_the_loop_of_a_library_is_run_as_it_is(script, tmp_path):
    """Ignite's engine, for example, calls a function of the script for each batch."""
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


def test_the_loop_of_a_library_that_reads_no_loader_is_taken_once_it_makes_a_second_update(script, tmp_path):
    """Stable-Baselines3, for example, reads minibatches from a buffer; an earlier update may have made a state."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/a_learner.py").write_text(
        "def learn(update, made, rollouts=100):\n    made()\n"
        "    for rollout in range(rollouts):\n        for batch in range(4):\n            update()\n"
    )
    loop, names = script(f"""
        import sys
        sys.path.append("{tmp_path}/site-packages")
        from a_learner import learn
        def update():
            x, y = numbers[:16], 2 * numbers[:16]
            {OWN_STEP}
            seen.append(len(seen))
        def made():
            model(numbers[:2]).sum().backward()
            optimizer.step()
            optimizer.state.clear()
        learn(update, made)
    """)
    assert loop.samples == 16
    before = len(names["seen"])
    batches(loop, 8)
    assert len(names["seen"]) == before + 8


def test_a_loop_in_a_case_is_found(script):
    loop, names = script(
        """
        match "train":
            case "train":
                for x, y in loader:
                    STEP
    """
    )
    assert loop.model is names["model"]
