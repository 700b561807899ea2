"""Start method of the workers

What it does
------------
Starts the DataLoader's workers by `fork`, `forkserver` or `spawn` (`multiprocessing_context`). On Linux PyTorch takes
Python's own choice: fork up to Python 3.13, forkserver from 3.14 on.

Why it helps
------------
A forked worker is a copy of the training process: each first write to a shared page copies it, Python's reference
counts are such writes, and garbage collection in the worker goes through objects of the trainer. A worker from a fork
server or a fresh interpreter has its own dataset and nothing else.

When it does not
----------------
In the steady state workers do the same work however they were started: expect no difference, except in memory. Fork
starts fastest, but it copies a process that already has threads and CUDA. A lock that a thread held stays locked for
ever in the worker. An operation on several threads waits for those of the trainer, which are not there, so
`worker_threads` does not go with it. CUDA cannot be used there at all. The others import the program anew in every
worker, which takes seconds, and send the dataset there by pickling: every part of it must be picklable, and a large one
is copied.

Numerics
--------
exact: the sampler decides the order and the base seed the augmentation, as before.

References
----------
Python documentation, multiprocessing, Contexts and start methods. PyTorch documentation, torch.utils.data,
Platform-specific behaviors; Multiprocessing best practices, CUDA in multiprocessing.
"""

from collections.abc import Mapping
from typing import Any

from advisor.figures.formatting import format_seconds
from advisor.recipe.loader_recipe import WorkerRecipe, epoch_seconds, little_time_in
from advisor.records import Facts, LoaderFacts, Proposal, Skip, Value

_METHODS = ("fork", "forkserver", "spawn")
# A worker that is not forked imports PyTorch first, and that takes longer than this.
_AFRESH_S = 1.0


class WorkerContext(WorkerRecipe):
    key = "data.multiprocessing_context"
    values = ("default", *_METHODS)
    without_workers = "the loader has no workers that could be started in another way"
    # Expected speed-up: forkserver 1.10x and 1.16x within the noise, 0.08x with short epochs (tests/gpu/RESULTS.md).
    gain = 1.0

    def values_for_workers(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if too_little := little_time_in(facts, self.phases):
            return too_little
        if loader.pickle_problem:
            return Skip(f"forkserver and spawn need a dataset that can be pickled: {loader.pickle_problem}")
        if short := _starts_too_often(loader, facts):
            return short
        return ["forkserver", "spawn"]

    def options(self, value: Value) -> Mapping[str, Any]:
        return {"multiprocessing_context": None if value == self.default else str(value)}


def _starts_too_often(loader: LoaderFacts, facts: Facts) -> Skip | None:
    """The reason to skip a fresh start where workers start anew in every short epoch; None otherwise."""
    epoch_s = epoch_seconds(facts)
    forked = facts.workload.current.get("data.multiprocessing_context", "default") not in ("forkserver", "spawn")
    if epoch_s is None or epoch_s >= _AFRESH_S or loader.persistent_workers or not forked:
        return None
    return Skip(
        f"an epoch takes about {format_seconds(epoch_s)} and starts its workers anew; started afresh they would import "
        "PyTorch each time, which takes longer: keep them with persistent_workers first"
    )
