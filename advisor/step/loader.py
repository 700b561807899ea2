"""Rebuild a DataLoader from its constructor's arguments with some of them changed, like Lightning and Accelerate."""

import inspect
import multiprocessing
import sys
import types
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from advisor.errors import RefusedError
from advisor.inlined.on_device import why_not_kept
from advisor.records.workload import ONE_WORKER

_NAMES = tuple(inspect.signature(DataLoader).parameters)
# Options that PyTorch accepts only with workers.
_OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"})


def rebuild(loader: DataLoader[Any], **options: Any) -> DataLoader[Any]:
    """Rebuild a loader with some arguments of the DataLoader's constructor changed. Its class stays the same.

    The other arguments (dataset, sampler, collate function, generator and so on) are read from the attributes of
    ``loader``, even those of a subclass. The sampler keeps the order, so ``shuffle`` is not passed. Options for workers
    are dropped if there are no workers. Attributes that were set after the construction are lost.

    Raises RefusedError with a reason if the constructor does not take the arguments, or if an option would change the
    samples or import the user's script again.
    """
    workers = options.get("num_workers", loader.num_workers)
    if workers > loader.num_workers and (reason := workers_problem(loader)):
        raise RefusedError(reason)
    if workers > 1 >= loader.num_workers and isinstance(loader.dataset, IterableDataset):
        raise RefusedError(ONE_WORKER)
    if "batch_size" in options and loader.batch_size is None:
        raise RefusedError("the loader's batch sampler or dataset sets the batch size: change it there")
    arguments = _arguments_of(loader, options)
    try:
        return type(loader)(**arguments)
    except Exception as error:  # the user's constructor may raise anything
        raise RefusedError(f"{type(loader).__name__} cannot be rebuilt by its constructor: {error}") from error


def workers_problem(loader: DataLoader[Any]) -> str:
    """The reason why a loader gets no more workers (each would import the user's script); empty if it can get more."""
    main = sys.modules["__main__"]
    is_a_script = getattr(main, "__file__", None) is not None and getattr(main, "__spec__", None) is None
    own: Any = loader.multiprocessing_context or multiprocessing
    # With allow_none, the program can still choose its start method later.
    starts = own.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if not is_a_script or starts == "fork":
        return ""
    return "its workers are not forked: each would run your script again, except the code under its `__main__` guard"


def on_device_problem(loader: DataLoader[Any]) -> str:
    """The reason why a loader's batches cannot be read as a whole from the device's memory; empty if they can."""
    if loader.batch_sampler is None or loader.collate_fn is not default_collate:
        return "the loader has its own collate_fn, or does not form batches"
    return why_not_kept(loader.dataset)


def length_of(sized: Any) -> int | None:
    """The length of a loader or a sampler; None if it has no length."""
    with suppress(TypeError, NotImplementedError):
        return len(sized)
    return None


def _arguments_of(loader: DataLoader[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The constructor arguments that make the same loader with these options.

    A loader without a batch size has a batch sampler, or a dataset of whole batches. A subclass may pass arguments to
    PyTorch's constructor itself. These are left out: its own constructor does not take them, or their value is a
    method of the loader. Raises RefusedError if the constructor does not take an argument that must change.
    """
    left_out = {"shuffle"}
    if isinstance(loader.dataset, IterableDataset):
        left_out |= {"sampler", "batch_sampler"}
    elif "batch_sampler" in options or (loader.batch_size is None and loader.batch_sampler is not None):
        left_out |= {"batch_size", "sampler", "drop_last"}
    else:
        left_out |= {"batch_sampler"}
    if not options.get("num_workers", loader.num_workers):
        left_out |= _OF_WORKERS
    parameters = inspect.signature(type(loader)).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    by_name = [name for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    given = {name: getattr(loader, name) for name in by_name if name not in _NAMES and hasattr(loader, name)}
    for name in (name for name in _NAMES if name not in left_out):
        value = options.get(name, getattr(loader, name))
        is_own = isinstance(value, types.MethodType) and value.__self__ is loader
        if not is_own and (name in by_name or (takes_all and value is not None)):
            given[name] = value
        elif not takes_all and value is not getattr(loader, name):
            raise RefusedError(f"the constructor of {type(loader).__name__} has no argument {name}")
    if "sampler" not in left_out and "sampler" not in given and "shuffle" in by_name:
        given["shuffle"] = isinstance(loader.sampler, RandomSampler)
    return given
