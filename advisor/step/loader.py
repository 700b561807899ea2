"""A DataLoader rebuilt from its constructor's arguments, some of them changed, as Lightning and Accelerate do."""

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
# Options that PyTorch takes only where there are workers.
_OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"})


def rebuild(loader: DataLoader[Any], **options: Any) -> DataLoader[Any]:
    """Rebuild a loader with some arguments of the DataLoader's constructor changed; the class stays the same.

    Dataset, sampler, collate function, generator and the other arguments are read from the attributes of ``loader``,
    also those that a subclass adds. The sampler keeps the order, so ``shuffle`` is not passed. Options for workers are
    dropped if there are no workers. Attributes that were set after the construction are lost.

    Raises RefusedError with a reason if the constructor does not take the arguments, or if an option would change the
    samples or import the user's script again.
    """
    workers = options.get("num_workers", loader.num_workers)
    if workers > loader.num_workers and (reason := workers_problem(loader)):
        raise RefusedError(reason)
    if workers > 1 >= loader.num_workers and isinstance(loader.dataset, IterableDataset):
        raise RefusedError(ONE_WORKER)
    if "batch_size" in options and loader.batch_size is None:
        raise RefusedError("the loader has a batch sampler of its own or does not form batches: change the size there")
    arguments = _arguments_of(loader, options)
    try:
        return type(loader)(**arguments)
    except Exception as error:  # the constructor is the user's, and may raise anything
        raise RefusedError(f"{type(loader).__name__} cannot be made anew by its constructor: {error}") from error


def workers_problem(loader: DataLoader[Any]) -> str:
    """The reason that a loader gets no workers, or no more than it has: each would import a script; empty for none."""
    main = sys.modules["__main__"]
    is_a_script = getattr(main, "__file__", None) is not None and getattr(main, "__spec__", None) is None
    own: Any = loader.multiprocessing_context or multiprocessing
    # Asked so, the program stays free to choose its own way later.
    starts = own.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if not is_a_script or starts == "fork":
        return ""
    return "its workers are not forked: each would import your script anew, also what is outside its `__main__` guard"


def on_device_problem(loader: DataLoader[Any]) -> str:
    """The reason that a loader's samples cannot be read at once from the device's memory; empty where they can be."""
    if loader.batch_sampler is None or loader.collate_fn is not default_collate:
        return "the loader has a collate_fn of its own, or forms no batches"
    return why_not_kept(loader.dataset)


def length_of(sized: Any) -> int | None:
    """The length of a loader or a sampler; None where it does not know."""
    with suppress(TypeError, NotImplementedError):
        return len(sized)
    return None


def _arguments_of(loader: DataLoader[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The constructor arguments that make the same loader with these options.

    A loader without a batch size has a batch sampler, or a dataset of whole batches. Arguments that a subclass passes
    to PyTorch's constructor itself are left out: its own constructor does not have them, or the value is a method of
    the loader. Raises RefusedError if it does not take an argument that is to change.
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
            raise RefusedError(f"the constructor of {type(loader).__name__} takes no {name}")
    if "sampler" not in left_out and "sampler" not in given and "shuffle" in by_name:
        given["shuffle"] = isinstance(loader.sampler, RandomSampler)
    return given
