"""What scripts in the tests begin with, and the step of a loop that was loaded, under settings."""

from __future__ import annotations

from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

numbers = torch.arange(64.0)[:, None]
loader = DataLoader(TensorDataset(numbers, 2 * numbers), batch_size=8)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
seen = []

"""
# A step that stays whole: no plain loop clips the values of its gradients.
STEP = (
    "loss = (model(x) - y).abs().mean(); optimizer.zero_grad(); loss.backward(); "
    "nn.utils.clip_grad_value_(model.parameters(), 1e9); optimizer.step()"
)

WORKER = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
import torch

def worker(*_):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()

"""
# Scripts that cannot be measured as they are.
BAD = {
    "no_loop": "import torch\nif __name__ == '__main__':\n    print(torch.nn.Linear(2, 2))\n",
    "needs_arguments": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n"
    "p.parse_args()\n",
    "at_import": f"{WORKER}worker()\n\ndef build(): ...\n",
    "forks": f"{WORKER}child = os.fork()\nif not child:\n    worker()\nos.waitpid(child, 0)\n",
    "spawns": f"{WORKER}process = multiprocessing.get_context('fork').Process(target=worker)\nprocess.start()\n"
    "process.join()\n",
    "spawns_ranks": f"{WORKER}if __name__ == '__main__':\n    torch.multiprocessing.spawn(worker, nprocs=2)\n",
    "pool_of_processes": f"{WORKER}if __name__ == '__main__':\n"
    "    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:\n"
    "        pool.submit(worker).result()\n",
}


def step_of(loop, settings=None):
    components = loop.components(StepPlan(mode=loop.mode, device="cpu", clip_norm=loop.clip_grad), loop.data)
    apply_settings(load_catalog(), components, {**loop.current, **(settings or {})})
    return make_step(components, loop.loss)


def batches(loop, count):
    """Run some steps of a loop, each on its own batch."""
    step = step_of(loop)
    return [float(step(batch)) for _, batch in zip(range(count), loop.data, strict=False)]
