"""The batches of a trial, identical for the same seed: those of the first steps, and an endless feed for the others."""

import contextlib
import itertools
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.files.paths import is_library
from advisor.inlined.lengths import copy_of
from advisor.recipe.plan import StepPlan
from advisor.step.device_loader import is_loader, loop_loader
from advisor.step.loader import length_of, rebuild
from advisor.trial.measurement.clock import batch_samples
from advisor.workloads.entrypoint import one_line, user_frames
from advisor.workloads.loop import seed_host

# Number of first steps, whose results are compared; the most seconds for them, and for drawing their batches.
PROBE_STEPS = 5
PROBE_LIMIT_S = 10.0
_DRAWING_S = 3.0
# Number of shown lines of a worker's traceback: the last two frames and the exception.
_SHOWN_LINES = 7


def probe_batches(data: Any, seed: int, plan: StepPlan | None = None) -> list[Any]:
    """The batches of the first steps: a loader's first batches under a seed, the same in every trial.

    There are fewer if drawing takes long. Workers are not used if possible. With a plan, the batches are copied and
    transformed as in the loop.
    """
    if not isinstance(data, DataLoader):
        return [data] * PROBE_STEPS
    alone = data
    with contextlib.suppress(Exception):  # if it cannot be built again or its dataset cannot be copied
        # Files that a dataset opens at its first sample stay with its copy: workers forked later share no open file.
        alone = rebuild(data, num_workers=0, dataset=copy_of(data.dataset))
    try:
        return _drawn(alone, seed, plan)
    except TargetError:
        if not data.num_workers:
            raise
    return _drawn(data, seed, plan)  # the dataset may ask for its worker, and gets none here


def _drawn(loader: DataLoader[Any], seed: int, plan: StepPlan | None) -> list[Any]:
    seed_host(seed)
    started = time.perf_counter()
    batches: list[Any] = []
    try:
        for batch in itertools.islice(loop_loader(loader, plan) if plan else loader, PROBE_STEPS):
            batches.append(batch)
            if time.perf_counter() - started > _DRAWING_S and len(batches) > 1:
                break
    except Exception as error:
        raise loader_failure(error, len(batches) + 1) from error
    return batches


def no_batch() -> TargetError:
    """Return the error for a loader without batches."""
    return TargetError("the DataLoader yields no batch.", "Check its dataset, sampler and drop_last.")


def loader_failure(error: BaseException, turn: int) -> TargetError:
    """Return the error for a loader that raised. It names the batch and shows the lines of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = str(error).strip().splitlines()
    # An error from a worker has no frame of the user's code here: its text contains the worker's traceback.
    in_worker = len(lines) > 1 and all(is_library(frame.filename) for frame in frames)
    return TargetError(
        f"the DataLoader failed at batch {turn}: {one_line(error)}",
        "Check the dataset, the sampler and the collate function at the lines shown.",
        "\n".join(lines[-_SHOWN_LINES:]) if in_worker else user_frames(error),
    )


def seed_all(seed: int) -> None:
    """Seed the generators of the host and of all devices."""
    torch.manual_seed(seed)
    seed_host(seed)


def _epochs(loader: Any, seed: int | None) -> Iterator[Any]:
    """The endless batches of a loader. Raises TargetError if it fails or if an epoch yields nothing."""
    if seed is not None:
        seed_host(seed)
    served, earlier = 0, -1
    while served > earlier:
        earlier = served
        try:
            for batch in loader:  # the workers of an epoch end before the next ones start
                served += 1
                yield batch
        except Exception as error:
            raise loader_failure(error, served + 1) from error
    if not served:
        raise no_batch()
    raise TargetError(
        f"the DataLoader yields nothing after its first {served} batches: its dataset can only be read once.",
        "Let the dataset's __iter__ start from the beginning each time, or give build() one batch.",
    )


class Feed:
    """Batches from a loader whose first epoch begins under a ``seed``, or always the same resident batch."""

    def __init__(self, data: Any, seed: int | None = None) -> None:
        # An exported Python file wraps a loader in its own class.
        self._loader: Any = data if is_loader(data) or is_loader(getattr(data, "loader", None)) else None
        self._batches: Iterator[Any] = itertools.repeat(data) if self._loader is None else _epochs(self._loader, seed)

    def next(self) -> Any:
        """The next batch; after the last batch a new epoch begins. Raises TargetError if an epoch yields nothing."""
        return next(self._batches)

    def leave_out_other_sizes(self, samples: int) -> None:
        """Return only batches of this many samples from now on, since compiled code may accept no other size."""
        self._batches = filter(lambda batch: batch_samples(batch, samples) == samples, self._batches)

    @property
    def resident(self) -> bool:
        """Whether every step gets the same batch, which is on the device already."""
        return self._loader is None

    @property
    def queued_batches(self) -> int:
        """The number of batches that workers may have ready before the first step: consume them before timing."""
        return 0 if self._loader is None else int(self._loader.num_workers * (self._loader.prefetch_factor or 2))

    def cycle(self, most_steps: int) -> int:
        """The steps after which the work of a loader's workers repeats: an epoch, if it has at most ``most_steps``.

        For longer epochs it is one batch of each worker, since all workers finish at about the same time.
        """
        workers = self._loader.num_workers if self._loader is not None else 0
        if not workers:
            return 1
        epoch = length_of(self._loader)
        return epoch if epoch and epoch <= most_steps else max(1, min(workers, most_steps))
