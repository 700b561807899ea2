"""Batches drawn from a loader in the trial's own process, which leave the loader as it was."""

import contextlib
import itertools
import os
import random
import sys
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.errors import RefusedError, TargetError
from advisor.figures.formatting import format_first
from advisor.recipe.plan import StepPlan
from advisor.records import BatchPrint, DataPrint, varying
from advisor.step.batch import tensors_of
from advisor.step.draws import AllHostDraws, seed_host
from advisor.step.loaders import copy_with
from advisor.step.owners import is_of_library
from advisor.step.prefetch import loop_loader
from advisor.step.reached import globals_of, has_names, seen_by_workers
from advisor.target.entrypoint import one_line, user_frames
from advisor.target.loop import describe
from advisor.trial.measurement.data_prints import fingerprint_of

# Batches that are drawn a second time, with other random numbers, to see what is random. A count.
_DRAWN_AGAIN = 2
_LIMIT_S = 10.0
# Longest first look that is followed by a second. Seconds.
_SECOND_LOOK_S = 2.0
# Amounts added to a number that samples may depend on. Unitless: the next one, and one behind any threshold.
_FURTHER_ON = (1, 10**6)
_COUNTS = "a number that reading them changes; each worker would have its own"
# Lines of a worker's traceback that are shown: the last two frames and the exception.
_SHOWN_LINES = 7
# Random places in a batch that a note names. A count.
_PLACES_NAMED = 4
# Largest depth of nested samplers and datasets. A count.
_DEEPEST = 5
_LEADS_ON = ("dataset", "datasets", "sampler", "batch_sampler", "data_source", "indices")


def first_batches(
    data: Any, seed: int, count: int, *, plan: StepPlan | None = None, limit_s: float = _LIMIT_S
) -> list[Any]:
    """The first batches of a loader under a seed, fewer when they take longer; without workers, if that is possible.

    With a plan they come the way that the loop gets them: copied and transformed as the plan says.
    """
    with side_effects_undone(data):
        try:
            return _drawn(data, seed, count, plan=plan, limit_s=limit_s, workers=0)
        except Exception:
            # A dataset may ask which worker it is in, and find none here.
            if not data.num_workers:
                raise
    with side_effects_undone(data):
        return _drawn(data, seed, count, plan=plan, limit_s=limit_s, workers=1)


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


def fingerprint_of_data(data: Any, batches: list[Any], seed: int, plan: StepPlan, *, twice: bool) -> DataPrint | None:
    """The prints of a loader's first batches; None for other data.

    With ``twice`` some are drawn again under the same seed, but with other random numbers for the dataset: what differs
    then says nothing when two loaders are compared.
    """
    if not isinstance(data, DataLoader):
        return None
    probed = tuple(fingerprint_of(batch) for batch in batches)
    if not twice:
        return DataPrint(probed)
    try:
        again = first_batches(
            _reseeded(data, seed + 1), seed, min(len(batches), _DRAWN_AGAIN), plan=plan, limit_s=_SECOND_LOOK_S
        )
    except Exception:  # it was read once already: an error of a second reading does not fail the trial
        return DataPrint(probed)
    random_places, loose = varying(probed, tuple(fingerprint_of(batch) for batch in again))
    return DataPrint(probed, random=random_places, loose=loose)


def state_problem(loader: Any) -> str:
    """The program state that reading a sample changes, which a worker changes in its process only; empty if none."""
    before, ends = _program_state(), list[tuple[AllHostDraws, dict[str, Any]]]()
    started = time.perf_counter()
    try:
        for seed in (1, 2):  # of the same samples
            with side_effects_undone(loader):
                reseeded = _reseeded(loader, seed)
                if reseeded is loader or time.perf_counter() - started > _SECOND_LOOK_S:
                    return ""
                _drawn(reseeded, 0, 1, plan=None, limit_s=_LIMIT_S, workers=0)
                ends.append((AllHostDraws(), _program_state()))
    except Exception:  # whatever reading the loader raises is told where its batches are used
        return ""
    (one, after), (other, _) = ends
    changed = [name for name, value in after.items() if value != before[name]]
    if torch.equal(one.of_torch, other.of_torch) or one.of_python == other.of_python:
        changed.append("random seed")
    if not changed:
        return ""
    return f"reading a sample changes the program's {' and '.join(changed)}; a worker would change only its own"


def count_problem(loader: Any) -> str:
    """The number on which samples depend and that reading them changes: each worker has its own. Empty for none."""
    if isinstance(loader.dataset, IterableDataset):  # whose workers yield samples of their own
        return ""
    before = [(one, dict(vars(one))) for one in filter(has_names, _seen(loader))]
    started = time.perf_counter()
    try:
        with side_effects_undone(loader):
            expected = _first_print(loader)
            counted = [(one, name, value) for one, held in before for name, value in _numbers_changed(one, held)]
        if not counted or time.perf_counter() - started > _SECOND_LOOK_S:
            return ""
        with side_effects_undone(loader):
            if _first_print(loader) != expected:  # by random numbers that no seed decides
                return ""
    except Exception:  # whatever reading the loader raises is told where its batches are used
        return ""
    decides = (
        (one, name)
        for one, name, value in counted
        if time.perf_counter() - started < _LIMIT_S
        and any(_is_other_with(loader, one, name, value + further, expected) for further in _FURTHER_ON)
    )
    return next((f"samples depend on {type(one).__name__}.{name}, {_COUNTS}" for one, name in decides), "")


def _numbers_changed(one: Any, held: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    return (
        (name, value) for name, value in vars(one).items() if type(value) in (int, float) and value != held.get(name)
    )


def _is_other_with(loader: Any, one: Any, name: str, value: float, expected: BatchPrint) -> bool:
    """Whether the first batch is another one, or fails, with this value of an attribute."""
    with side_effects_undone(loader):
        vars(one)[name] = value
        try:
            return _first_print(loader) != expected
        except Exception:  # a position beyond the end, for one
            return True


def _first_print(loader: Any) -> BatchPrint:
    [batch] = _drawn(loader, 0, 1, plan=None, limit_s=_LIMIT_S, workers=0)
    return fingerprint_of(batch)


def notes_on_data(data: DataPrint | None) -> list[str]:
    """A note that names the random parts of the batches, which are not compared; empty where there are none."""
    places = (*data.random, *data.loose) if data is not None else ()
    if not places:
        return []
    named = format_first([place if place == "batch" else f"batch[{place}]" for place in places], _PLACES_NAMED)
    return [f"augmentation draws {named} at random, so its values are not compared when a loader is changed"]


def check_batch_size(data: Any) -> None:
    """Raise RefusedError for a loader whose class does not read its samples by its batch size."""
    if not isinstance(data, DataLoader) or not any(_overrides(data, name) for name in ("__iter__", "_get_iterator")):
        return
    sizes: list[int] = []
    with side_effects_undone(data):
        loader = _copied(data, 0)
        _replace_indices(loader, lambda indices: _Watched(indices, sizes))
        next(iter(_copied(loader, 0)), None)
    if not sizes:
        raise RefusedError(f"{type(data).__name__} reads its samples in its own way: data.batch_size changes nothing")


def no_batch() -> TargetError:
    """Return the error for a loader without batches."""
    return TargetError("the DataLoader yields no batch.", "Check its dataset, sampler and drop_last.")


def loader_failure(error: BaseException, turn: int) -> TargetError:
    """Return the error for a loader that raised: it names the batch, and shows the lines of the user's code."""
    lines = str(error).strip().splitlines()
    # An error that a worker raised carries its traceback.
    in_worker = any(line.startswith("Original Traceback") for line in lines)
    return TargetError(
        f"the DataLoader failed at batch {turn}: {one_line(error)}",
        "Check the dataset, the sampler and the collate function at the lines shown.",
        "\n".join(lines[-_SHOWN_LINES:]) if in_worker else user_frames(error),
    )


def seed_all(seed: int) -> None:
    """Seed the generators of the host and of all devices."""
    torch.manual_seed(seed)
    seed_host(seed)


def begun_early(loader: Any) -> bool:
    """Whether a loader began to read when it was made, and not when it is iterated over."""
    return any(isinstance(held, _BaseDataLoaderIter) for name, held in vars(loader).items() if name != "_iterator")


@contextlib.contextmanager
def side_effects_undone(loader: Any) -> Iterator[None]:
    """Leave random numbers, samplers, datasets, their generators and the program's switches as they were.

    Attributes that samplers, datasets, transforms and collate functions set meanwhile are taken back, and the global
    names of their code; a file that one opens for itself too: workers that are forked later must not share it. What is
    changed in place stays changed.
    """
    seen = _seen(loader)
    owners = {id(owner): owner for owner in (*_owners(loader, _DEEPEST), *filter(has_names, seen))}
    held = [(owner, dict(vars(owner))) for owner in owners.values()]
    functions = [one for one in seen if isinstance(one, types.FunctionType) and not is_of_library(one)]
    named = [(one.__globals__, name, value) for one in functions for name, value in globals_of(one).items()]
    generators = [*(value for _, attributes in held for value in attributes.values()), *seen]
    states = [(generator, state) for generator in generators if (state := _state_of(generator)) is not None]
    host, program = AllHostDraws(), _program_state()
    try:
        yield
    finally:
        _restore_program(program)
        for owner, attributes in held:
            for name in vars(owner).keys() - attributes.keys():
                del vars(owner)[name]
            vars(owner).update(attributes)  # at no moment without what it had: a thread of its own may look
        for names, name, value in named:
            names[name] = value
        for generator, state in states:
            _restore(generator, state)
        host.put_back()


def _seen(loader: Any) -> list[Any]:
    """The objects that a loader's workers would get; none of other data."""
    has_samples = isinstance(loader, DataLoader) and "dataset" in vars(loader)
    return [one for one, _ in seen_by_workers(loader)] if has_samples else []


def _program_state() -> dict[str, Any]:
    """The state of the whole program that user code may change."""
    try:
        working_directory = os.getcwd()  # noqa: PTH109 - it may be gone
    except FileNotFoundError:
        working_directory = None
    return {
        "gradient mode": torch.is_grad_enabled(),
        "default type": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "working directory": working_directory,
    }


def _restore_program(state: dict[str, Any]) -> None:
    torch.set_grad_enabled(state["gradient mode"])
    torch.set_default_dtype(state["default type"])
    if torch.get_num_threads() != state["number of threads"]:
        torch.set_num_threads(state["number of threads"])
    if state["working directory"] is not None:
        os.chdir(state["working directory"])


def _overrides(loader: Any, method: str) -> bool:
    return getattr(type(loader), method, None) is not getattr(DataLoader, method)


class _Watched:
    """Batches of indices as a sampler gives them; their sizes are noted."""

    def __init__(self, indices: Any, sizes: list[int]) -> None:
        self.indices = indices
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.indices:
            self.sizes.append(len(batch))
            yield batch


class _Reseeded(_Watched):
    """The indices of a sampler in their order; what fetches their samples draws random numbers of another seed."""

    def __init__(self, indices: Any, seed: int) -> None:
        super().__init__(indices, [])
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        drawn, state = iter(self.indices), AllHostDraws()
        for turn in itertools.count():
            state.put_back()
            try:
                batch = next(drawn)
            except StopIteration:
                return
            state = AllHostDraws()
            seed_host(self.seed + turn)
            yield batch


def _drawn(data: Any, seed: int, count: int, *, plan: StepPlan | None, limit_s: float, workers: int) -> list[Any]:
    seed_host(seed)
    loader = _copied(data, workers)  # after the seed: some begin to read as soon as they are made
    started = time.perf_counter()
    batches = []
    try:
        for batch in itertools.islice(loop_loader(loader, plan) if plan else loader, count):
            batches.append(batch)
            if time.perf_counter() - started > limit_s:
                break
    except Exception as error:
        raise loader_failure(error, len(batches) + 1) from error
    return batches


def _copied(loader: Any, workers: int) -> Any:
    """A copy of a loader with this many workers, which end with the epoch; the loader itself if it cannot be copied."""
    try:
        return copy_with(loader, num_workers=workers, persistent_workers=False)
    except ValueError:
        return loader


def _reseeded(loader: Any, seed: int) -> Any:
    copied = _copied(loader, 0)
    if copied is not loader:
        _replace_indices(copied, lambda indices: _Reseeded(indices, seed))
    return copied


def _replace_indices(loader: Any, replaced: Any) -> None:
    """Replace the source of a copied loader's indices, or that of the loader that it wraps."""
    for inner in vars(loader).values():
        if isinstance(inner, DataLoader):
            _replace_indices(inner, replaced)
    if "dataset" in vars(loader):
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        object.__setattr__(loader, name, replaced(getattr(loader, name)))


def _owners(value: Any, depth: int) -> Iterator[Any]:
    """A loader, its samplers and its datasets: the objects that may count draws."""
    if isinstance(value, list | tuple):
        for one in value[:16]:
            yield from _owners(one, depth)
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.Tensor | torch.nn.Module):
        yield value
        for name, held in vars(value).items() if depth else ():
            if name in _LEADS_ON or isinstance(held, Dataset | Sampler | DataLoader):
                yield from _owners(held, depth - 1)


def _state_of(value: Any) -> Any:
    """The state of a generator of random numbers; None for anything else."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    return None


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
