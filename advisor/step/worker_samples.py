"""Whether workers would read the samples that this process reads: tried out in a fork, before a loader gets workers.

The fork reads a few samples over and over: nothing that reading changes comes back to this process.
"""

import contextlib
import dataclasses
import json
import os
import select
import signal
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch

from advisor.step.forked import read_independently
from advisor.step.host_draws import seed_host
from advisor.step.layouts import strided_parts

# Samples that are read. A count: two of them show what one leaves to the next.
SAMPLES = 2
# Longest time for all readings; a loader that takes longer goes unchecked. Seconds.
LIMIT_S = 10.0
SEEDS = (20, 21)
DEPENDS_ON_EARLIER = "the samples depend on what was read before them, and each worker would know of its own only"
DIFFERS_IN_WORKERS = (
    "a worker reads other samples than this process: the dataset keeps what it draws, or asks where it runs, or "
    "worker_init_fn changes it"
)
SEEDED_ALIKE = (
    "all workers would draw the same random numbers, in every epoch anew: from a generator of the dataset's own, or as "
    "worker_init_fn seeds them"
)
DRAWN_IN_WORKERS = (
    "the samples draw random numbers, and workers draw them from seeds of their own: the samples are others than "
    "without workers, as under another seed"
)
REMEMBERED = (
    "the samples depend on what was read before them: workers that live on remember that from epoch to epoch, and new "
    "ones do not"
)
DRAWN_ON = (
    "the samples draw random numbers, and workers that live on begin no epoch with new seeds: the samples are others "
    "than those of new workers, as under another seed"
)
KEPT_IN_WORKERS = "is changed by reading samples, in a copy that each worker has: this process does not see that"
ORDER_OF_STREAM = "several workers hand out the samples of a stream in another order, and in other batches, than one"


def difference_in_workers(read: Callable[[bool], typing.Any]) -> str:
    """The reason that workers would read other samples, one of the sentences above; empty where they would not.

    ``read`` reads samples, always the same, in a worker or in this process. Empty too where the fork cannot read them.
    """
    return str(answer_of_fork(lambda: difference_between(read)) or "")


def difference_between(read: Callable[[bool], typing.Any]) -> str:
    """As :func:`difference_in_workers`, in the fork."""

    def under(seed: int, *, in_worker: bool) -> typing.Any:
        seed_host(seed)
        return read(in_worker)

    first, other = SEEDS
    # Each worker begins with what this process has not changed yet.
    worker, again, reseeded = (under(seed, in_worker=True) for seed in (first, first, other))
    alone, later, redrawn = (under(seed, in_worker=False) for seed in (first, first, other))
    if not are_same(worker, again):  # random numbers that no seed decides
        return DRAWN_IN_WORKERS
    if not are_same(alone, later):
        return DEPENDS_ON_EARLIER
    if not are_same(later, redrawn):
        return SEEDED_ALIKE if are_same(worker, reseeded) else DRAWN_IN_WORKERS
    return "" if are_same(worker, alone) else DIFFERS_IN_WORKERS


def difference_in_later_epochs(read: Callable[[], typing.Any]) -> str:
    """The reason that workers which live on would read other samples than new ones; empty where they would not.

    ``read`` reads samples in this process, always the same. Empty too where the fork cannot read them.
    """

    def difference() -> str:
        found = []
        for seed in (SEEDS[0], *SEEDS):
            seed_host(seed)
            found.append(read())
        if not are_same(*found[:2]):
            return REMEMBERED
        return "" if are_same(*found[1:]) else DRAWN_ON

    return str(answer_of_fork(difference) or "")


def answer_of_fork(call: Callable[[], typing.Any]) -> typing.Any:
    """The result of a call in a fork of this process, as JSON has it; None where it raises or takes too long."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads, as where a DataLoader forks its workers
        child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):  # an answer or none: the fork has nothing else to say
            os.setpgid(0, 0)
            be_silent()
            read_independently()
            torch.set_num_threads(1)  # the threads of the parent's computations are not here
            os.write(sending, json.dumps(call()).encode())
        os._exit(0)
    os.close(sending)
    try:
        ready, _, _ = select.select([receiving], [], [], LIMIT_S)
        answer = os.read(receiving, 2**16) if ready else b""
    finally:
        os.close(receiving)
        with contextlib.suppress(OSError):  # it may have ended
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(OSError):  # the program may collect its children itself
            os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def be_silent() -> None:
    """Write nothing to the streams of the parent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def are_same(one: typing.Any, other: typing.Any) -> bool:
    """Whether nothing tells two batches apart; parts of unknown kinds are taken for the same."""
    pairs = zip(parts_in(one), parts_in(other), strict=False)
    return len(list(parts_in(one))) == len(list(parts_in(other))) and all(are_equal(*pair) for pair in pairs)


def parts_in(batch: typing.Any) -> Iterator[typing.Any]:
    """The tensors, arrays, numbers and texts of a batch."""
    if isinstance(batch, torch.Tensor):
        yield from strided_parts(batch.detach())
    elif isinstance(batch, (bool, int, float, complex, str, bytes)) or hasattr(type(batch), "__array_interface__"):
        yield batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from (str(key), *parts_in(value))
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from parts_in(value)
    elif dataclasses.is_dataclass(batch) or hasattr(batch, "__dict__"):
        yield from parts_in([value for value in vars(batch).values() if not hasattr(value, "__dict__")])


def are_equal(one: typing.Any, other: typing.Any) -> bool:
    """Whether two parts have the same value; NaN is the same as NaN here."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | (is_nan(one) & is_nan(other))).all())
    if hasattr(type(one), "__array_interface__") and hasattr(type(other), "__array_interface__"):
        return bool(one.shape == other.shape and one.tobytes() == other.tobytes())
    return type(one) is type(other) and bool(one == other or (is_nan(one) and is_nan(other)))


def is_nan(value: typing.Any) -> typing.Any:
    """Whether a value, or which elements of a tensor, are not a number: those alone differ from themselves."""
    return value != value  # noqa: PLR0124
