"""DataLoader workers that use several threads, and how such workers have to be started."""

import multiprocessing
import typing

import torch


class StartWorker:
    """A `worker_init_fn` that sets the threads of a worker. It can be sent to workers that are started afresh."""

    def __init__(self, threads: int, then: typing.Any) -> None:
        self.threads = threads
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Set the threads, then run the `worker_init_fn` that the loader had, if any."""
        torch.set_num_threads(self.threads)
        if self.then is not None:
            self.then(worker_id)


def context_without_fork(loader: typing.Any) -> typing.Any:
    """The start method for workers that use threads: the loader's own, or fresh interpreters where that would fork.

    A forked worker would wait for ever for the threads that OpenMP had started in this process: they are not copied.
    Nor would a fork server do: one that has used threads itself passes on the same.
    """
    own = loader.multiprocessing_context
    # Asking in this way leaves the program free to choose a start method later; the first one is the system's default.
    usual = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    method = usual if own is None else own.get_start_method()
    return "spawn" if method == "fork" else own
