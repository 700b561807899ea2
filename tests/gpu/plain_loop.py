"""Times a plain loop, and the same loop with exported settings applied by the public API. Independent of the trials.

    python tests/gpu/plain_loop.py tests/gpu/workloads/resnet50.py tuned.yaml

Prints the milliseconds per step of both and their ratio: what the user's own loop gains.
"""

import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import advisor

ROUNDS = 7
ROUND_S = 0.3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def module_of(workload):
    """The file as a module that is registered: compiled code looks up its globals there."""
    spec = importlib.util.spec_from_file_location(f"workload_{Path(workload).stem}", workload)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def plain_step(workload):
    model, batch, loss_fn, make_optimizer = module_of(workload).build()
    model.to(DEVICE).train()
    optimizer = make_optimizer(model.parameters())
    *inputs, target = (tensor.to(DEVICE) for tensor in batch)

    def step():
        optimizer.zero_grad()
        loss = loss_fn(model(*inputs), target)
        loss.backward()
        optimizer.step()

    return step


def tuned_step(workload, settings):
    model, batch, loss_fn, make_optimizer = module_of(workload).build()
    model.to(DEVICE)
    tuning = advisor.load(settings)
    model, optimizer = tuning.prepare(model, make_optimizer(model.parameters()))
    step = tuning.train_step(model, optimizer, loss_fn)
    on_device = tuple(tensor.to(DEVICE) for tensor in batch)
    return lambda: step(on_device)


def time_step(step):
    for _ in range(20):
        step()
    synchronize()
    steps = max(1, round(ROUND_S / run(step, 20)))
    return 1e3 * statistics.median(run(step, steps) for _ in range(ROUNDS))


def run(step, steps):
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - start) / steps


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def main():
    workload, settings = sys.argv[1:3]
    if len(sys.argv) == 4:
        step = plain_step(workload) if sys.argv[3] == "plain" else tuned_step(workload, settings)
        print(time_step(step))
        return
    # Each in a process of its own, because settings change global flags; in turn, because a shared host drifts.
    runs = {"plain": [], "tuned": []}
    for which in ("plain", "tuned", "tuned", "plain"):
        runs[which].append(float(subprocess.check_output([sys.executable, __file__, workload, settings, which])))
    timed = {which: statistics.mean(times) for which, times in runs.items()}
    print(f"plain {timed['plain']:.3f} ms, tuned {timed['tuned']:.3f} ms, {timed['plain'] / timed['tuned']:.3f}x")


if __name__ == "__main__":
    main()
