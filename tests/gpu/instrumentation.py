"""What the timed loop of a trial costs over the same loop without it, alternately in one process.

    python tests/gpu/instrumentation.py mlp12 resnet50

Each workload is run eagerly and, where it can be, as one CUDA graph, which is the shortest step there is.
"""

import runpy
import statistics
import sys
import time
from pathlib import Path

import torch

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.graph import captured
from advisor.step.step import finish_components, make_step
from advisor.trial.measurement.clock import StepClock
from advisor.trial.measurement.draws import Feed
from advisor.trial.timed_loop import stepper

WORKLOADS = Path(__file__).with_name("workloads")
ROUNDS, BLOCK_S = 15, 0.15
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def step_of(workload, *, graph):
    model, batch, loss, make_optimizer = runpy.run_path(str(WORKLOADS / f"{workload}.py"))["build"]()
    model.to(DEVICE).train()
    plan = StepPlan(mode=Mode.TRAIN, device=str(DEVICE), cuda_graph=graph)
    components = Components(model, make_optimizer(model.parameters()), batch, plan)
    finish_components(components)
    return captured(make_step(components, loss)), tuple(tensor.to(DEVICE) for tensor in batch)


def plain_seconds(run, batch, steps):
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        run(batch)
    synchronize()
    return time.perf_counter() - start


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def compare(workload, *, graph):
    step, batch = step_of(workload, graph=graph)
    run = step if graph else step.run
    clock = StepClock(DEVICE, stepper(step, Feed(batch), 1))
    for _ in range(20):
        run(batch)
    steps = max(1, round(BLOCK_S / (plain_seconds(run, batch, 20) / 20)))
    plain, timed = [], []
    for index in range(2 * ROUNDS):
        if index % 4 in (0, 3):  # A B B A
            plain.append(plain_seconds(run, batch, steps) / steps)
        else:
            timed.append(clock.run(steps).seconds / steps)
    before, after = statistics.median(plain), statistics.median(timed)
    kind = "one graph" if graph else "eager"
    print(f"{workload:12} {kind:10} plain {1e3 * before:.4f} ms, timed {1e3 * after:.4f} ms, {after / before - 1:+.2%}")


def main():
    for workload in sys.argv[1:]:
        compare(workload, graph=False)
        if DEVICE.type == "cuda":
            compare(workload, graph=True)


if __name__ == "__main__":
    main()
