"""A DataLoader with some of its options changed: a copy that keeps its class and all that it holds."""

import collections
import collections.abc
import copy
import itertools
import sys
import types
import typing
import warnings

import torch

from advisor.step.forked import forks
from advisor.step.host_draws import AllHostDraws, draws_kept
from advisor.step.loader_epochs import READS_WITH, Epoch, IteratorsOf, give_options, samplers_of, state_kept
from advisor.step.reached import changed_in, divides_samples, seen_by_workers, watched_of
from advisor.step.worker_samples import (
    DRAWN_IN_WORKERS,
    DRAWN_ON,
    KEPT_IN_WORKERS,
    ORDER_OF_STREAM,
    SAMPLES,
    answer_of_fork,
    difference_in_later_epochs,
    difference_in_workers,
)

WITHOUT_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
REBUILT = "Accelerate builds the loader anew, and workers that live on between epochs would change how it shuffles"
READ_AHEAD = (
    "the sampler's state_dict() tells its position, and workers read it ahead: "
    "a run that goes on from a checkpoint would leave samples out"
)


def loader_with(loader: typing.Any, **changes: typing.Any) -> typing.Any:
    """A copy of a DataLoader with these options of its constructor changed; it is of the same class.

    Without workers, the options that need them are dropped. Raises ValueError, with the reason, where the copy would
    not yield the same samples, or would take no notice of a change.
    """
    begins = changes.get("persistent_workers") and not loader.persistent_workers
    if begins and (reason := why_not_live_on(loader)):
        raise ValueError(reason)
    return checked_copy(loader, changes)


def with_workers(loader: typing.Any, num_workers: int) -> typing.Any:
    """A loader with this many workers, which live on between epochs unless the dataset has to hear of each epoch.

    Workers that live on already do so whatever their number. Where they may not, they start anew in each epoch, with a
    warning. Raises ValueError where workers, if there were none, would read other samples; warns where they would draw
    other random numbers.
    """
    if num_workers and not loader.num_workers:
        refuse_other_samples(loader, num_workers)
    stay = num_workers > 0 and (loader.persistent_workers or not hears_of_epochs(loader.dataset))
    if stay and not loader.persistent_workers and (reason := why_not_live_on(loader)):
        stay = False
        warnings.warn(f"persistent_workers=True is left out: {reason}", stacklevel=2)
    return checked_copy(loader, {"num_workers": num_workers, "persistent_workers": stay})


def checked_copy(loader: typing.Any, changes: dict[str, typing.Any]) -> typing.Any:
    """A copy of a loader with other options. Raises ValueError where it would yield others, or ignore a change."""
    refuse_repeated_samples(loader, changes)
    if changes.get("num_workers") and not loader.num_workers and keeps_position(loader):
        raise ValueError(READ_AHEAD)
    changed = copy_with(loader, **changes)
    refuse_ignored_changes(loader, changed, changes)
    return changed


def why_not_live_on(loader: typing.Any) -> str:
    """The reason that workers may not live on from epoch to epoch; empty where they may.

    Where they only draw other random numbers than new ones, this warns.
    """
    if hears_of_epochs(loader.dataset):
        return "the dataset has set_epoch(), which workers that live on from epoch to epoch do not hear of"
    if is_rebuilt_later(loader):
        return f"{REBUILT}: prepare it with Accelerate first"
    if not loader.num_workers or isinstance(loader.dataset, torch.utils.data.IterableDataset) or not forks(loader):
        return ""
    reason = difference_in_later_epochs(lambda: first_samples(loader, 0))
    if reason == DRAWN_ON:
        warnings.warn(f"data.persistent_workers: {reason}", stacklevel=4)
        return ""
    return reason


def hears_of_epochs(dataset: typing.Any) -> bool:
    """Whether a dataset, or one within it, is told of each epoch by a call of its ``set_epoch``."""
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return hasattr(dataset, "set_epoch") or (inner is not None and hears_of_epochs(inner))


def keeps_position(loader: typing.Any) -> bool:
    """Whether a sampler of the loader's has a state for checkpoints, and the loader none that allows for workers."""
    return not hasattr(loader, "state_dict") and any(hasattr(one, "state_dict") for one in samplers_of(loader))


def is_rebuilt_later(loader: typing.Any) -> bool:
    """Whether there is an Accelerator in this process, and the loader is not one of its own yet.

    Accelerate keeps of a loader what PyTorch's constructor takes; what a copy has besides is lost.
    """
    state: typing.Any = sys.modules.get("accelerate.state")
    return state is not None and bool(state.AcceleratorState._shared_state) and not hasattr(loader, "gradient_state")


def adjusted(change: typing.Callable[..., typing.Any], loader: typing.Any, **options: typing.Any) -> typing.Any:
    """Return the changed loader; the loader itself, with a warning, where the change is refused."""
    try:
        return change(loader, **options)
    except ValueError as problem:
        named = ", ".join(f"{name}={value!r}" for name, value in options.items())
        without = f", without {named}" if named else ""
        warnings.warn(f"the loader stays as it is{without}: {problem}", stacklevel=2)
        return loader


def copy_with(loader: typing.Any, **changes: typing.Any) -> typing.Any:
    """A copy of a loader with other options; its samples are not checked. Raises ValueError where none can be made."""
    held, iterators = dict(vars(loader)), {}
    for name, value in vars(loader).items():
        if isinstance(value, torch.utils.data.DataLoader):
            held[name] = copy_with(value, **changes)
        elif isinstance(value, (torch.utils.data.dataloader._BaseDataLoaderIter, Epoch)):
            iterators[name] = held.pop(name)
        elif isinstance(value, collections.abc.Iterator):
            raise ValueError(f"{type(loader).__name__} reads from an iterator ({name}), which a copy would share")  # noqa: TRY004
    if any(iterator._num_yielded for name, iterator in iterators.items() if name != "_iterator"):
        raise ValueError(f"the loader ({type(loader).__name__}) is being read already, and a copy would begin anew")
    copied = object.__new__(type(loader))
    vars(copied).update(held)
    for name, value in held.items():
        if isinstance(value, types.MethodType) and value.__self__ is loader:
            vars(copied)[name] = types.MethodType(value.__func__, copied)
    if "dataset" in held:  # a loader that only wraps another one has no options of its own
        give_options(copied, settled(loader, changes))
        keep_draws(copied, loader, began=bool(changes.get("persistent_workers")) and not loader.persistent_workers)
    for name, iterator in iterators.items():
        vars(copied)[name] = None if name == "_iterator" else begun_anew(copied, iterator)
    return copied


def begun_anew(copied: typing.Any, held: typing.Any) -> typing.Any:
    """An iterator of a copied loader in the place of one that its owner holds, which drew what a new one would.

    Raises ValueError where workers of the one that is held have drawn an order ahead.
    """
    with draws_kept(), state_kept(copied.generator):
        before = draws_of(copied)
        if getattr(held, "_send_idx", 0):  # as many as workers have been given to read
            next(iter(copied._index_sampler), None)
        if draws_of(copied) != before:
            raise ValueError(
                f"the workers of the loader ({type(copied).__name__}) have drawn the order of samples already, and a "
                "copy would draw another"
            )
        return torch.utils.data.DataLoader.__iter__(copied)


def draws_of(loader: typing.Any) -> tuple[typing.Any, ...]:
    """The states of the generators that a loader's samplers may draw from."""
    return AllHostDraws(), None if loader.generator is None else loader.generator.get_state().tolist()


def keep_draws(copied: typing.Any, loader: typing.Any, began: bool) -> None:
    """Have a copied loader draw as its owner's does, when its workers ``began`` to live on, now or in a copy before.

    One that reads in another way makes its iterators so.
    """
    held = vars(copied).pop("_get_iterator", None)
    ours = hasattr(held, "lives_on")  # of another copy of this code too, as where two settings' code is in one file
    had = ours and (held.once or held.lives_on or held.draws_once)  # workers of another kind than its owner's
    once = copied.num_workers > 0 and (held.once if had else not loader.num_workers)
    lives_on = copied.persistent_workers and (began or (ours and held.lives_on))
    draws_once = held.draws_once if had else bool(loader.num_workers and loader.persistent_workers)
    draws_once = draws_once and not copied.persistent_workers
    if once or lives_on or draws_once or hasattr(copied, READS_WITH):
        copied._get_iterator = IteratorsOf(copied, once, lives_on, draws_once)
    elif held is not None and not ours:
        copied._get_iterator = held


def settled(loader: typing.Any, changes: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """The attribute values that follow from these options, in the order in which they have to be set."""
    options = dict(changes)
    workers = options.setdefault("num_workers", loader.num_workers)
    if not workers:
        options |= WITHOUT_WORKERS
    elif options.get("prefetch_factor", loader.prefetch_factor) is None:
        options["prefetch_factor"] = 2  # PyTorch's default for workers
    if "batch_size" in options:
        options["batch_sampler"] = resized_batches(loader, options["batch_size"])
    return {"num_workers": workers, **options}


def resized_batches(loader: typing.Any, size: int) -> typing.Any:
    """The loader's batch sampler for batches of this size. Raises ValueError where the size does not decide on them."""
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ValueError("the loader does not form batches (batch_size=None): change the batch size in the dataset")
    if loader.batch_size is None or not isinstance(loader.batch_sampler, torch.utils.data.BatchSampler):
        raise ValueError("the loader has a batch sampler of its own: change the batch size there")
    resized = copy.copy(loader.batch_sampler)
    resized.batch_size = size
    plain = torch.utils.data.BatchSampler(loader.sampler, size, loader.drop_last)
    if length_of(resized) != length_of(plain):
        raise ValueError(f"{type(resized).__name__} forms its batches in its own way: change the batch size there")
    return resized


def refuse_other_samples(loader: typing.Any, num_workers: int) -> None:
    """Raise ValueError where workers would read other samples of a dataset than this process does.

    What forks would read is tried out in one; a stream's workers have samples of their own.
    """
    if "dataset" not in vars(loader) or not forks(loader):
        return
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        if num_workers > 1 and divides_samples(loader):
            warnings.warn(f"data.num_workers: {ORDER_OF_STREAM}", stacklevel=4)
        return
    difference = difference_in_workers(lambda in_worker: first_samples(loader, int(in_worker)))
    if difference == DRAWN_IN_WORKERS:
        warnings.warn(f"data.num_workers: {difference}", stacklevel=4)
    elif difference:
        raise ValueError(difference)
    if changed := answer_of_fork(lambda: changed_by_reading(loader)):
        warnings.warn(f"data.num_workers: {changed} {KEPT_IN_WORKERS}", stacklevel=4)


def changed_by_reading(loader: typing.Any) -> str:
    """A name whose value changes when samples are read in this process; empty for none."""
    watched = watched_of(one for one, _ in seen_by_workers(loader))
    first_samples(loader, 0)
    return changed_in(watched)


def first_samples(loader: typing.Any, num_workers: int) -> typing.Any:
    """A batch of a loader's first samples, whatever its sampler draws."""
    indices = list(itertools.islice(range(len(loader.dataset)), SAMPLES))
    copied = copy_with(loader, num_workers=num_workers, persistent_workers=False)
    if loader.batch_sampler is None:
        give_options(copied, {"sampler": indices[:1]})
    else:
        give_options(copied, {"batch_sampler": [indices]})
    return next(iter(copied))


def refuse_repeated_samples(loader: typing.Any, changes: dict[str, typing.Any]) -> None:
    """Raise ValueError where another number of workers would repeat the samples of an iterable dataset."""
    workers = changes.get("num_workers", loader.num_workers)
    same = workers == loader.num_workers or max(workers, loader.num_workers) <= 1
    if not same and isinstance(loader.dataset, torch.utils.data.IterableDataset) and not divides_samples(loader):
        raise ValueError("every worker would yield all samples: shard the dataset by get_worker_info()")


def refuse_ignored_changes(loader: typing.Any, changed: typing.Any, changes: dict[str, typing.Any]) -> None:
    """Raise ValueError where the class of a loader decides otherwise on an option, or on its length."""
    name, wanted = type(loader).__name__, settled(loader, changes)
    for option in ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor", "dataset"):
        held = getattr(changed, option)
        if option in wanted and held is not wanted[option] and held != wanted[option]:
            raise ValueError(f"{name} decides on {option} itself")
    if "dataset" in changes or isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return
    expected = length_of(changed.batch_sampler if "batch_size" in changes else loader)
    if expected != length_of(changed) and length_of(loader) is not None:
        raise ValueError(
            f"{name} counts its batches itself, and would have {length_of(changed)} in place of {expected}"
        )


def length_of(sized: typing.Any) -> int | None:
    """The length of a loader or a sampler; None where it does not know."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
