"""A DataLoader with some of its options changed: a copy that keeps its class and all that it holds."""

import collections.abc
import copy
import functools
import sys
import types
import typing
import warnings
import weakref

import torch

WITHOUT_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
REBUILT = "Accelerate builds the loader anew, and workers that live on between epochs would change how it shuffles"
# Objects that are looked through for code that divides samples among workers, at most. A count.
MOST_LOOKED_AT = 2000


def loader_with(loader: typing.Any, **changes: typing.Any) -> typing.Any:
    """A copy of a DataLoader with these options of its constructor changed; it is of the same class.

    Without workers, the options that need them are dropped. Raises ValueError, with the reason, where the copy would
    not yield the same samples, or would take no notice of a change.
    """
    refuse_repeated_samples(loader, changes)
    if changes.get("persistent_workers") and not loader.persistent_workers and hears_of_epochs(loader.dataset):
        raise ValueError("the dataset has set_epoch(), which workers that live on from epoch to epoch do not hear of")
    if changes.get("persistent_workers") and not loader.persistent_workers and is_rebuilt_later(loader):
        raise ValueError(f"{REBUILT}: prepare it with Accelerate first")
    changed = copy_with(loader, **changes)
    refuse_ignored_changes(loader, changed, changes)
    return changed


def with_workers(loader: typing.Any, num_workers: int) -> typing.Any:
    """A loader with this many workers, which live on between epochs unless the dataset has to hear of each epoch.

    Workers that live on already do so whatever their number. Where Accelerate rebuilds the loader they start anew in
    each epoch, with a warning.
    """
    stay = num_workers > 0 and (loader.persistent_workers or not hears_of_epochs(loader.dataset))
    if stay and not loader.persistent_workers and is_rebuilt_later(loader):
        stay = False
        warnings.warn(f"persistent_workers=True is left out: {REBUILT}: prepare it with Accelerate first", stacklevel=2)
    return loader_with(loader, num_workers=num_workers, persistent_workers=stay)


def hears_of_epochs(dataset: typing.Any) -> bool:
    """Whether a dataset, or one within it, is told of each epoch by a call of its ``set_epoch``."""
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return hasattr(dataset, "set_epoch") or (inner is not None and hears_of_epochs(inner))


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
        warnings.warn(f"the loader stays as it is, without {named}: {problem}", stacklevel=2)
        return loader


def copy_with(loader: typing.Any, **changes: typing.Any) -> typing.Any:
    """As :func:`loader_with`, whatever the samples will be. Raises ValueError where no copy can be made."""
    held, iterators = dict(vars(loader)), {}
    for name, value in vars(loader).items():
        if isinstance(value, torch.utils.data.DataLoader):
            held[name] = copy_with(value, **changes)
        elif isinstance(value, torch.utils.data.dataloader._BaseDataLoaderIter):
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
    for name in iterators:
        vars(copied)[name] = None if name == "_iterator" else torch.utils.data.DataLoader.__iter__(copied)
    return copied


class IteratorsOf:
    """Makes the iterators of a loader with workers that were added, or that live on, so that it draws as its owner's.

    A loader without workers asks its sampler for one iterator in each epoch, and PyTorch's loader with workers for two:
    a sampler that counts epochs would skip every other one. A loader whose workers live on has one iterator for all
    epochs. One that is made for each epoch draws a random number each time, on which all later ones depend: the
    shuffling of the next epoch, dropout.
    """

    def __init__(self, loader: typing.Any, once: bool, draws: bool) -> None:
        self.loader = weakref.ref(loader)  # the loader holds this object
        self.once = once
        self.draws = draws

    def __reduce__(self) -> typing.Any:
        return IteratorsOf, (self.loader(), self.once, self.draws)

    def __call__(self) -> typing.Any:
        """The iterator that the loader's class makes."""
        loader: typing.Any = self.loader()
        held = dict(vars(loader))
        for name in ("batch_sampler", "sampler") if self.once else ():
            if held.get(name) is not None:  # the iterator keeps it
                object.__setattr__(loader, name, UnreadKept(held[name]))
        try:
            iterator = type(loader)._get_iterator(loader)
        finally:
            for name in ("batch_sampler", "sampler"):
                if name in held:
                    object.__setattr__(loader, name, held[name])
        if self.draws and hasattr(iterator, "_reset"):
            iterator.__class__ = type(type(iterator).__name__, (DrawsEachEpoch, type(iterator)), {})
        return iterator


class UnreadKept:
    """A sampler that is asked for another iterator only when the last one has been read from."""

    def __init__(self, sampler: typing.Any) -> None:
        self.sampler = sampler
        self.unread: typing.Iterator[typing.Any] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        if self.unread is None:
            self.unread = iter(self.sampler)
        return self.read()

    def read(self) -> typing.Iterator[typing.Any]:
        """Yield the rest of the present iterator."""
        unread, self.unread = self.unread, None
        yield from unread or ()


class DrawsEachEpoch:
    """An iterator that draws in each epoch the random number that a new one would draw."""

    _index_sampler: typing.Any

    def _reset(self, loader: typing.Any, first_iter: bool = False) -> None:
        if not first_iter:
            if isinstance(self._index_sampler, UnreadKept):
                iter(self._index_sampler)  # which may draw: before the iterator, as a new one does
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        super()._reset(loader, first_iter)  # type: ignore[misc]


def keep_draws(copied: typing.Any, loader: typing.Any, began: bool) -> None:
    """Have a copied loader draw as its owner's does, when its workers ``began`` to live on, now or in a copy before."""
    held = vars(copied).pop("_get_iterator", None)
    ours = isinstance(held, IteratorsOf)
    once = copied.num_workers > 0 and (held.once if ours else not loader.num_workers)
    draws = copied.persistent_workers and (began or (ours and held.draws))
    if once or draws:
        copied._get_iterator = IteratorsOf(copied, once, draws)
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


def give_options(loader: typing.Any, options: dict[str, typing.Any]) -> None:
    """Set attributes that a DataLoader guards once it is made; properties of its class work as they do there."""
    for name, value in options.items():
        try:
            object.__setattr__(loader, name, value)
        except AttributeError as error:
            raise ValueError(f"{type(loader).__name__} decides on {name} itself") from error


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


def refuse_repeated_samples(loader: typing.Any, changes: dict[str, typing.Any]) -> None:
    """Raise ValueError where another number of workers would repeat the samples of an iterable dataset."""
    workers = changes.get("num_workers", loader.num_workers)
    same = workers == loader.num_workers or max(workers, loader.num_workers) <= 1
    if not same and isinstance(loader.dataset, torch.utils.data.IterableDataset) and not divides_samples(loader):
        raise ValueError("every worker would yield all samples: shard the dataset by get_worker_info()")


def refuse_ignored_changes(loader: typing.Any, changed: typing.Any, changes: dict[str, typing.Any]) -> None:
    """Raise ValueError where the class of a loader has its own idea of what was changed."""
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


def divides_samples(loader: typing.Any) -> bool:
    """Whether an iterable dataset, or what starts its workers, asks which worker it is in.

    The code of their classes is looked through, and that of what they hold and call; it is not run.
    """
    waiting: list[typing.Any] = [loader.dataset, loader.worker_init_fn]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_LOOKED_AT:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        named = isinstance(one, types.CodeType) and "get_worker_info" in one.co_names
        # A pipe of PyTorch's that has the method is divided by the loader.
        if named or one is torch.utils.data.get_worker_info or hasattr(type(one), "apply_sharding"):
            return True
        try:
            waiting += parts_with_code(one)
        except Exception:  # noqa: S112 - an object of any class may refuse to be looked through
            continue
    return False


def parts_with_code(one: typing.Any) -> list[typing.Any]:
    """The parts of a function, container or object that may hold code; none of PyTorch's own functions and classes."""
    if isinstance(one, types.CodeType):
        return list(one.co_consts)
    if isinstance(one, types.FunctionType):
        called = [one.__globals__.get(name) for name in one.__code__.co_names]
        named = [one.__code__, *closed_over(one), *filter(callable, called)]
        return [] if is_of_a_library(one) else named
    if isinstance(one, (list, tuple, dict)):
        return list(one.values() if isinstance(one, dict) else one)[:16]
    if isinstance(one, (types.MethodType, functools.partial)):
        return [
            getattr(one, name) for name in ("__func__", "__self__", "func", "args", "keywords") if hasattr(one, name)
        ]
    classes = one.__mro__ if isinstance(one, type) else type(one).__mro__
    members = [member for kind in classes if not is_of_a_library(kind) for member in vars(kind).values()]
    functions = [getattr(member, "fget", getattr(member, "__func__", member)) for member in members]
    held = {} if isinstance(one, (type, torch.Tensor)) else getattr(one, "__dict__", {})
    return [*(member for member in functions if isinstance(member, types.FunctionType)), *held.values()]


def is_of_a_library(one: typing.Any) -> bool:
    """Whether a function or a class is of Python's or PyTorch's own, whose code says nothing of a dataset."""
    return str(one.__module__).partition(".")[0] in ("builtins", "torch", "numpy", "typing", "abc", "collections")


def closed_over(function: typing.Any) -> list[typing.Any]:
    """The values of a closure's variables; those without a value yet are left out."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found
