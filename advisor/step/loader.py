"""A DataLoader made anew by its constructor's arguments, as Lightning and Accelerate do, with some of them changed."""

import inspect
import multiprocessing
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from advisor.errors import RefusedError

# The value of each option that PyTorch takes only with workers, where there are none.
_WITHOUT_WORKERS: dict[str, Any] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
_NAMES = tuple(inspect.signature(DataLoader).parameters)
# Values that PyTorch's constructor takes for arguments that are not given.
_LEFT_TO_PYTORCH = (None, default_collate, default_convert)

REPEATED = "every worker would yield all samples: shard the dataset by get_worker_info()"
HEARS_OF_EPOCHS = "the dataset has set_epoch(), which workers that live on from epoch to epoch do not hear of"
IMPORTS_SCRIPT = (
    "its workers are not forked, so each would import your script anew and run what is not under "
    "`if __name__ == '__main__':`"
)


def rebuild(loader: DataLoader[Any], **options: Any) -> DataLoader[Any]:
    """Make a loader anew with these arguments of the DataLoader's constructor changed; it is of the same class.

    Dataset, sampler, collate function, generator and the other arguments are those of ``loader``, taken from its
    attributes; so are the arguments that a subclass adds. A sampler keeps the order, so ``shuffle`` needs no mention.
    Options that only workers take are dropped where there are none. What was set on the object later is not kept.

    Raises RefusedError, with a sentence that says why, where the constructor does not take the arguments, or an option
    would change the samples, or import the user's script again.
    """
    _refuse(loader, options)
    kind, arguments = type(loader), _arguments_of(loader, options)
    if kind is not DataLoader:
        arguments = _taken_by(kind, loader, arguments)
    try:
        return kind(**arguments)
    except Exception as error:  # the constructor is the user's, and may raise anything
        raise RefusedError(f"{kind.__name__} cannot be made anew by its constructor: {error}") from error


def _refuse(loader: DataLoader[Any], options: Mapping[str, Any]) -> None:
    """Raise RefusedError where these options would change the samples of a loader, or import a script again."""
    workers = options.get("num_workers", loader.num_workers)
    if workers > loader.num_workers and (reason := workers_problem(loader)):
        raise RefusedError(reason)
    if workers > max(loader.num_workers, 1) and is_iterable(loader) and not divides_samples(loader):
        raise RefusedError(REPEATED)
    if options.get("persistent_workers") and not loader.persistent_workers and hears_of_epochs(loader.dataset):
        raise RefusedError(HEARS_OF_EPOCHS)
    if "batch_size" in options and loader.batch_size is None:
        raise RefusedError(
            "the loader has a batch sampler of its own: change the batch size there"
            if loader.batch_sampler is not None
            else "the loader does not form batches (batch_size=None): change the batch size in the dataset"
        )


def copy_problem(loader: DataLoader[Any]) -> str:
    """The reason that a loader cannot be made anew; empty where it can."""
    try:
        rebuild(loader)
    except RefusedError as error:
        return str(error)
    return ""


def workers_problem(loader: DataLoader[Any]) -> str:
    """The reason that a loader gets no workers, or no more than it has: each would import a script; empty for none."""
    main = sys.modules["__main__"]
    is_a_script = getattr(main, "__file__", None) is not None and getattr(main, "__spec__", None) is None
    own = loader.multiprocessing_context
    # Asked so, the program stays free to choose its own way later.
    usual = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    starts = str(own.get_start_method()) if own is not None else usual
    return IMPORTS_SCRIPT if is_a_script and starts != "fork" else ""


def one_by_one_problem(loader: DataLoader[Any]) -> str:
    """The reason that a loader has to read its samples one by one; empty for a TensorDataset and a Subset of one."""
    dataset = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if hasattr(dataset, "__getitems__"):
        return "the dataset reads batches at once itself (__getitems__)"
    if type(dataset) is not TensorDataset:
        return "the dataset is no TensorDataset, and has no __getitems__: its samples are read one by one"
    if loader.batch_size is None and loader.batch_sampler is None:
        return "the loader does not form batches (batch_size=None)"
    return "" if loader.collate_fn is default_collate else "the loader has a collate_fn of its own"


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether the dataset yields its samples by itself, and cannot be asked for one of them."""
    return isinstance(loader.dataset, IterableDataset)


def hears_of_epochs(dataset: Any) -> bool:
    """Whether a dataset, or the one that it wraps as its ``dataset``, is told of each epoch by ``set_epoch``."""
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return hasattr(dataset, "set_epoch") or (inner is not None and hears_of_epochs(inner))


def divides_samples(loader: DataLoader[Any]) -> bool:
    """Whether the workers of an iterable dataset divide its samples: its code asks for ``get_worker_info``.

    The files of its classes and of ``worker_init_fn`` are read, without PyTorch's own; a pipe of PyTorch's that shards
    is known by its method.
    """
    if hasattr(loader.dataset, "apply_sharding"):
        return True
    modules = {getattr(one, "__module__", "") for one in (*type(loader.dataset).__mro__, loader.worker_init_fn)}
    for name in modules:
        with suppress(KeyError, OSError, TypeError):  # a module that is built in, or was typed into an interpreter
            if not name.startswith("torch.") and "get_worker_info" in inspect.getsource(sys.modules[name]):
                return True
    return False


def length_of(sized: Any) -> int | None:
    """The length of a loader or a sampler; None where it does not know."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _arguments_of(loader: DataLoader[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by which PyTorch's class would make such a loader with these options.

    A loader without a batch size has a batch sampler, or a dataset that yields whole batches.
    """
    left_out = {"shuffle"}
    if is_iterable(loader):
        left_out |= {"sampler", "batch_sampler"}
    elif "batch_sampler" in options or (loader.batch_size is None and loader.batch_sampler is not None):
        left_out |= {"batch_size", "sampler", "drop_last"}
    else:
        left_out |= {"batch_sampler"}
    if loader.prefetch_factor is None:
        left_out |= {"prefetch_factor"}  # PyTorch's own number, should there be workers now
    held = {name: getattr(loader, name) for name in _NAMES if name not in left_out and hasattr(loader, name)}
    workers = options.get("num_workers", loader.num_workers)
    return {**held, **options, **({} if workers else _WITHOUT_WORKERS)}


def _taken_by(kind: type[DataLoader[Any]], loader: DataLoader[Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for the constructor of a subclass; those that it adds are attributes of the same name.

    What the class gives to PyTorch's constructor itself is left to it: its constructor names no such argument, or the
    value is a method of the loader. Raises RefusedError where it needs more, or takes no argument that is to change.
    """
    parameters = inspect.signature(kind).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    given = {}
    for name, value in arguments.items():
        is_own = isinstance(value, types.MethodType) and value.__self__ is loader
        if not is_own and (name in parameters or (takes_all and not any(value is one for one in _LEFT_TO_PYTORCH))):
            given[name] = value
        elif not takes_all and value is not getattr(loader, name):
            raise RefusedError(f"the constructor of {kind.__name__} takes no {name}")
    if "sampler" in arguments and "sampler" not in given and "shuffle" in parameters:
        given["shuffle"] = isinstance(loader.sampler, RandomSampler)
    for name, parameter in parameters.items():
        is_more = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and name not in given
        if is_more and name not in _NAMES and hasattr(loader, name):
            given[name] = getattr(loader, name)
        elif is_more and parameter.default is parameter.empty:
            raise RefusedError(f"the constructor of {kind.__name__} needs {name}, which is no attribute of the loader")
    return given
