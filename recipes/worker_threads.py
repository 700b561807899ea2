"""Threads in each worker

What it does
------------
Lets PyTorch use this many threads inside every DataLoader worker, set as the worker starts (`worker_init_fn`, after
which your own one runs). PyTorch's default is 1, which the value 0 leaves.

Why it helps
------------
A few workers on many cores leave cores idle. Transforms that are large tensor operations (resizing, colour changes,
normalising big images or audio) then run on several cores each, and a batch is ready sooner.

When it does not
----------------
Decoding JPEGs, tokenising and other work outside PyTorch's operators stays on one thread. Where workers times
threads is more than the cores, they get into one another's way: more workers use the cores better than more threads
do, as long as there is memory for them.

Numerics
--------
close: a reduction that is split over threads adds in another order.

References
----------
PyTorch documentation, torch.set_num_threads; torch.utils.data.DataLoader, worker_init_fn. PyTorch Performance Tuning
Guide, Enable asynchronous data loading and augmentation.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.loader_recipe import WorkerRecipe, little_time_in
from advisor.recipe import Components
from advisor.records import Facts, LoaderFacts, Numerics, Skip, Value

_THREADS = (2, 4)
_CODE = """\
if loader.num_workers:
    def start_worker(worker_id, then=loader.worker_init_fn):
        torch.set_num_threads({threads})
        if then is not None:
            then(worker_id)

{rebuilt}
"""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """A `worker_init_fn` that sets the threads, then calls the user's own. It can be sent to a spawned worker."""

    threads: int
    then: Callable[[int], Any] | None

    def __call__(self, worker_id: int) -> None:
        import torch

        torch.set_num_threads(self.threads)
        if self.then is not None:
            self.then(worker_id)


class WorkerThreads(WorkerRecipe):
    """`torch.set_num_threads` in every worker."""

    id = "worker_threads"
    title = "Threads in each worker"
    key = "data.worker_threads"
    default = 0
    numerics = Numerics.CLOSE
    ladder = True
    without_workers = "the loader has no workers whose threads could be set"

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Sequence[Value] | Skip:
        cores = facts.workload.usable_cores
        fitting = [threads for threads in _THREADS if threads <= cores // loader.num_workers]
        if not fitting:
            return Skip(f"{loader.num_workers} workers leave no cores idle: {cores} can be used")
        return little_time_in(facts, self.phases) or fitting

    def accepts(self, value: Value) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.rebuild import loader_with

        if value and workload.has_loader and workload.data.num_workers:
            start = StartWorker(int(value), workload.data.worker_init_fn)
            workload.data = loader_with(workload.data, worker_init_fn=start)

    def code(self, value: Value) -> str:
        from advisor.rebuild import loader_code

        if not value:
            return "# PyTorch gives each worker one thread\n"
        rebuilt = loader_code(worker_init_fn="start_worker").replace("'start_worker'", "start_worker")
        return _CODE.format(threads=int(value), rebuilt=textwrap.indent(rebuilt.rstrip(), "    "))

    def conflict(self, value: Value, settings: Mapping[str, Value]) -> str | None:
        if value and settings.get("data.multiprocessing_context") in ("forkserver", "spawn"):
            return (
                "data.worker_threads starts workers through a function inside prepare(), which workers by "
                "forkserver or spawn could not load"
            )
        return super().conflict(value, settings)
