"""Batches drawn from a loader in the trial's own process: the same in every trial of the same seed."""

import contextlib
import copy
import itertools
import time
import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import RefusedError, TargetError
from advisor.files.paths import is_library
from advisor.recipe.plan import StepPlan
from advisor.step.batch import tensors_of
from advisor.step.loader import rebuild
from advisor.step.prefetch import loop_loader
from advisor.workloads.draws import seed_host
from advisor.workloads.entrypoint import one_line, user_frames
from advisor.workloads.loop import describe

# The first steps, whose results are compared, and the most seconds that they and their batches take.
PROBE_STEPS = 5
PROBE_LIMIT_S = 10.0
# Lines of a worker's traceback that are shown: the last two frames and the exception.
_SHOWN_LINES = 7


def probe_batches(data: Any, seed: int, plan: StepPlan | None = None) -> list[Any]:
    """The batches of the first steps: a loader's first under a seed, so that every trial sees the same.

    They are fewer when they take long, and read without workers if that is possible. With a plan they come the way that
    the loop gets them: copied and transformed as the plan says.
    """
    if not isinstance(data, DataLoader):
        return [data] * PROBE_STEPS
    try:
        return _drawn(_without_workers(data), seed, plan)
    except TargetError:
        if not data.num_workers:
            raise
    return _drawn(data, seed, plan)  # the dataset may ask which worker it is in, and finds none here


def _drawn(loader: DataLoader[Any], seed: int, plan: StepPlan | None) -> list[Any]:
    seed_host(seed)
    started = time.perf_counter()
    batches: list[Any] = []
    try:
        for batch in itertools.islice(loop_loader(loader, plan) if plan else loader, PROBE_STEPS):
            batches.append(batch)
            if time.perf_counter() - started > PROBE_LIMIT_S:
                break
    except Exception as error:
        raise loader_failure(error, len(batches) + 1) from error
    return batches


def _without_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader, made anew to read in this process; the loader itself where it cannot be made anew.

    It reads a copy of the dataset: what that opens at its first sample stays its own, as workers that are forked later
    must not share an open file.
    """
    with contextlib.suppress(RefusedError):
        return rebuild(loader, num_workers=0, dataset=_copy_of(loader.dataset))
    return loader


def _copy_of(dataset: Any) -> Any:
    """A shallow copy of a dataset and of the one that it wraps, such as a ``Subset``; itself where it refuses."""
    with contextlib.suppress(Exception):  # a class of the user's may refuse in any way
        copied = copy.copy(dataset)
        if hasattr(dataset, "dataset"):
            copied.dataset = _copy_of(dataset.dataset)
        return copied
    return dataset


def check_batches(batches: list[Any], *, of_loader: bool) -> None:
    """Raise TargetError where there is nothing in the first batches that a step could be run on."""
    if not batches:
        raise no_batch()
    for turn, batch in enumerate(batches, 1):
        which = f"batch {turn} of the DataLoader" if of_loader else "the batch"
        tensors = list(tensors_of(batch))
        if batch is None or (isinstance(batch, Mapping | list | tuple) and not batch):
            raise TargetError(f"{which} is empty ({batch!r}).", "Check the collate function: it has to return samples.")
        if tensors and not any(tensor.numel() for tensor in tensors):
            raise TargetError(
                f"{which} holds no sample: {describe(batch)}.",
                "Give batches of at least one sample; leave out the empty ones in the sampler or the collate function.",
            )


def no_batch() -> TargetError:
    """Return the error for a loader without batches."""
    return TargetError("the DataLoader yields no batch.", "Check its dataset, sampler and drop_last.")


def loader_failure(error: BaseException, turn: int) -> TargetError:
    """Return the error for a loader that raised: it names the batch, and shows the lines of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = str(error).strip().splitlines()
    # An error that a worker raised has no frame of the user's here: it carries the worker's traceback in its text.
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
