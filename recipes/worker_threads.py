"""Threads in each worker

What it does
------------
Lets PyTorch use this many threads inside every DataLoader worker, set as the worker starts (`worker_init_fn`, after
which your own one runs). PyTorch's default is 1, which the value 0 leaves. Workers that would be forked, as Linux does
up to Python 3.13, are started in fresh interpreters (`multiprocessing_context="spawn"`) instead: a forked worker waits
for ever for threads that the training process had started before the fork. Those started by `forkserver` or `spawn`
stay so.

Why it helps
------------
A few workers on many cores leave cores idle. Transforms that are large tensor operations (resizing, colour changes,
normalising big images or audio) then run on several cores each, and a batch is ready sooner.

When it does not
----------------
Decoding JPEGs, tokenising and other work outside PyTorch's operators stays on one thread. Where workers times
threads is more than the cores, they get into one another's way: more workers use the cores better than more threads
do, as long as there is memory for them. A worker that is not forked takes seconds to start, in every epoch unless
workers persist, and gets the dataset by pickling: a dataset, a collate function or a `worker_init_fn` that cannot be
pickled rules this out. The workers import the script, too: what it computes has to stand under
`if __name__ == "__main__":`. If you start workers by `forkserver` yourself, a fork server that has used several
threads, through a module that it was told to preload, leads to the same hang.

Numerics
--------
close: a reduction that is split over threads adds in another order.

References
----------
PyTorch documentation, torch.set_num_threads; torch.utils.data.DataLoader, worker_init_fn; torch.utils.data,
Platform-specific behaviors. PyTorch Performance Tuning Guide, Enable asynchronous data loading and augmentation.
Python documentation, multiprocessing, Contexts and start methods.
"""

from advisor.recipe import Components, WholeNumbers
from advisor.recipe.loader_recipe import WorkerRecipe, little_time_in
from advisor.records import Facts, LoaderFacts, Proposal, Skip, Value, Values

_THREADS = (2, 4)


class _Expression(str):
    """Python that stands in generated code as it is, without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


class WorkerThreads(WorkerRecipe):
    key = "data.worker_threads"
    default = 0
    values = WholeNumbers(0, such_as=(0, 2))
    ladder = True
    without_workers = "the loader has no workers whose threads could be set"
    # Expected speed-up: 1.65x and 1.13x, both within the noise (tests/gpu/RESULTS.md).
    gain = 1.03

    def values_for_workers(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        cores = facts.workload.usable_cores
        fitting = [threads for threads in _THREADS if threads <= cores // loader.num_workers]
        if not fitting:
            return Skip(f"{loader.num_workers} workers leave no cores idle: {cores} can be used")
        if too_little := little_time_in(facts, self.phases):
            return too_little
        if loader.pickle_problem:
            return Skip(f"workers with threads cannot be forked, and others need pickling: {loader.pickle_problem}")
        return fitting

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.recipe.rebuild import loader_with
        from advisor.step.workers import StartWorker, context_without_fork

        if value and workload.has_loader and workload.data.num_workers:
            workload.data = loader_with(
                workload.data,
                worker_init_fn=StartWorker(int(value), workload.data.worker_init_fn),
                multiprocessing_context=context_without_fork(workload.data),
            )

    def code(self, value: Value) -> str:
        from advisor.recipe.rebuild import worker_code

        if not value:
            return "# PyTorch gives each worker one thread\n"
        return worker_code(
            also=("workers",),
            worker_init_fn=_Expression(f"StartWorker({int(value)}, loader.worker_init_fn)"),
            multiprocessing_context=_Expression("context_without_fork(loader)"),
        )

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value and settings.get("data.multiprocessing_context") == "fork":
            return (
                "data.worker_threads hangs in forked workers once the program has used several threads, and "
                "data.multiprocessing_context is fork"
            )
        return super().conflict(value, settings)
