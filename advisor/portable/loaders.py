"""A DataLoader with some of its options changed: a copy that keeps its class and all that it holds."""

import collections
import collections.abc
import contextlib
import copy
import itertools
import sys
import threading
import types
import typing
import warnings
import weakref

import torch

from advisor.portable.forked import StartForked, forks
from advisor.portable.reached import (
    changed_in,
    divides_samples,
    given_to_workers,
    same_things,
    seen_by_workers,
    watched_of,
)
from advisor.portable.unread import UnreadKept, samplers_of
from advisor.portable.worker_samples import DRAWN_IN_WORKERS, ORDER_OF_STREAM, SAMPLES, difference_in_workers

WITHOUT_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
# The options under which an iterator reads its samples in this process.
ALONE = {"num_workers": 0, "timeout": 0}
REBUILT = "Accelerate builds the loader anew, and workers that live on between epochs would change how it shuffles"
# Longest wait until another thread reads from the epoch that it has asked for, which it does at once. In seconds.
BEGINS_WITHIN_S = 0.5
READ_AHEAD = (
    "the sampler's state_dict() tells its position, and workers read it ahead: "
    "a run that goes on from a checkpoint would leave samples out"
)


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
    if changes.get("num_workers") and not loader.num_workers and keeps_position(loader):
        raise ValueError(READ_AHEAD)
    changed = copy_with(loader, **changes)
    refuse_ignored_changes(loader, changed, changes)
    return changed


def with_workers(loader: typing.Any, num_workers: int) -> typing.Any:
    """A loader with this many workers, which live on between epochs unless the dataset has to hear of each epoch.

    Workers that live on already do so whatever their number. Where Accelerate rebuilds the loader they start anew in
    each epoch, with a warning. Raises ValueError where workers, if there were none, would read other samples; that they
    draw other random numbers is a warning.
    """
    if num_workers and not loader.num_workers:
        refuse_other_samples(loader, num_workers)
    stay = num_workers > 0 and (loader.persistent_workers or not hears_of_epochs(loader.dataset))
    if stay and not loader.persistent_workers and is_rebuilt_later(loader):
        stay = False
        warnings.warn(f"persistent_workers=True is left out: {REBUILT}: prepare it with Accelerate first", stacklevel=2)
    return loader_with(loader, num_workers=num_workers, persistent_workers=stay)


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
    for name in iterators:
        vars(copied)[name] = None if name == "_iterator" else torch.utils.data.DataLoader.__iter__(copied)
    return copied


class IteratorsOf:
    """Makes the iterators of a loader with workers that were added, or that live on, so that they are as its owner's.

    A loader without workers asks its sampler for one iterator in each epoch, when the first batch is asked for, and
    PyTorch's loader with workers for two, at once: a sampler that counts epochs would skip every other one, and two
    loaders that are read side by side would shuffle in another way. ``once`` has workers do as without them.

    ``lives_on``: the workers were made to live on from epoch to epoch. A loader that starts an iterator for each epoch
    draws a random number each time, on which all later ones depend: the shuffling of the next epoch, dropout. It hears
    what became of the dataset meanwhile, and may be read by two loops at a time. So does and may one whose workers live
    on: where they could not follow, they end, and others start.

    ``draws_once``: the owner's workers lived on, and these do not. They draw in the first epoch only, as those did.
    """

    def __init__(self, loader: typing.Any, once: bool, lives_on: bool, draws_once: bool = False) -> None:
        self.loader = weakref.ref(loader)  # the loader holds this object
        self.once = once
        self.lives_on = lives_on
        self.draws_once = draws_once
        self.seeds: torch.Generator | None = None
        self.alone = False
        self.lock = threading.RLock()
        self.turn = threading.RLock()
        self.last: tuple[int, typing.Any] | None = None

    def __reduce__(self) -> typing.Any:
        return IteratorsOf, (self.loader(), self.once, self.lives_on, self.draws_once)

    def __call__(self) -> typing.Any:
        """The iterator that the loader's class makes, as one that can be exchanged from epoch to epoch."""
        return self.in_turn(self.of_first_epoch) if self.lives_on else self.of_first_epoch()

    def in_turn(self, make: typing.Callable[[], typing.Any]) -> typing.Any:
        """An epoch that is made when the last one is in the hands of the thread that asked for it.

        Where workers live on, DataLoader puts an epoch into an attribute, and then returns what stands there: a thread
        that asks for another one in between would have the two read the same.
        """
        with self.turn:
            thread, last = self.last or (0, None)
            if last is not None and thread != threading.get_ident():
                last.wait(BEGINS_WITHIN_S)
            epoch = make()
            self.last = threading.get_ident(), getattr(epoch, "begun", None)
            return epoch

    def of_first_epoch(self) -> typing.Any:
        """The iterator of the first epoch, or of one that has none before it."""
        loader: typing.Any = self.loader()
        with self.lock:  # one thread at a time gives the loader other options
            if self.alone:
                return Epoch(self, self.of_class(loader, **ALONE), None)
            if self.draws_once:
                return self.of_class(loader, **self.seeds_of_its_own(loader))
            kept = UnreadKept(loader) if self.once else None
            iterator = self.of_workers(loader, kept)
            return Epoch(self, iterator, kept) if hasattr(iterator, "_try_put_index") else iterator

    def seeds_of_its_own(self, loader: typing.Any) -> dict[str, typing.Any]:
        """The option by which the seed for an epoch's samples is drawn from a generator of ours; none in the first."""
        if self.seeds is None:
            self.seeds = torch.Generator().manual_seed((loader.generator or torch.default_generator).initial_seed())
            return {}
        return {"generator": self.seeds}

    def of_workers(self, loader: typing.Any, kept: "UnreadKept | None") -> typing.Any:
        """An iterator with workers, which reads the indices of its samples from ``kept``.

        Workers that were added share neither open files nor executors with this process.
        """
        if kept is None:
            return self.of_class(loader)
        own = {"worker_init_fn": StartForked(loader.worker_init_fn)} if forks(loader) else {}
        made = self.of_class(loader, kept, **own)
        made.watched = watched_of(one for one, _ in seen_by_workers(loader))
        return made

    def of_class(self, loader: typing.Any, indices: typing.Any = None, **options: typing.Any) -> typing.Any:
        """The iterator that the loader's class makes under these options, and with ``indices`` where they are given."""
        if indices is not None:
            options["sampler" if loader.batch_sampler is None else "batch_sampler"] = indices
        with self.lock:
            held = {name: getattr(loader, name) for name in options}
            try:
                give_options(loader, options)
                return type(loader)._get_iterator(loader)
            finally:
                give_options(loader, held)

    def after(self, before: "Epoch", loader: typing.Any) -> "Epoch":
        """The next epoch of workers that live on."""
        if self.alone:
            return typing.cast(Epoch, self.of_first_epoch())
        if self.once:
            with self.lock:
                kept = UnreadKept(loader)
            iter(kept)  # which may draw: before the iterator, as a new one does
            draw_seed(loader)
            return Epoch(self, None, kept, (before.iterator, weakref.ref(before), loader))
        if not before.finished or before.is_stale(loader):
            return Epoch(self, self.of_workers(loader, None), None)
        draw_seed(loader)
        before.iterator._reset(loader)
        return Epoch(self, before.iterator, None)


class Epoch:
    """The batches of one epoch of a loader with workers. ``iterator`` is PyTorch's, which several epochs may share.

    With ``kept``, workers get to know their samples when the first batch is asked for. ``taken`` is an epoch's
    iterator that may go on, a reference to that epoch, and the loader. ``samplers`` are as the last batch left them.
    """

    samplers: typing.Any = ()

    def __init__(
        self,
        maker: IteratorsOf,
        iterator: typing.Any,
        kept: UnreadKept | None,
        taken: tuple[typing.Any, typing.Any, typing.Any] | None = None,
    ) -> None:
        self.maker = maker
        self.iterator = iterator
        self.kept = kept
        self.taken = taken
        self.finished = False
        self.begun = threading.Event()
        if iterator is not None and maker.lives_on and not maker.alone and not hasattr(iterator, "given"):
            iterator.given = given_to_workers(maker.loader())

    def __iter__(self) -> "Epoch":
        return self

    def __len__(self) -> int:
        return len(self.present)

    def __getattr__(self, name: str) -> typing.Any:
        if name in ("iterator", "taken"):  # not there yet
            raise AttributeError(name)
        return getattr(self.present, name)

    def __next__(self) -> typing.Any:
        if not self.begun.is_set():
            self.begun.set()
        if self.taken is not None:
            self.take_over(*self.taken)
        if self.kept is not None:
            self.keep_up(self.kept)
        try:
            batch = next(self.iterator)
        except StopIteration:
            self.finished = True
            raise
        if self.kept is not None:
            self.samplers = watched_of(self.kept.read_on())
        return batch

    def keep_up(self, kept: UnreadKept) -> None:
        """Have workers read ahead until the loop changes an object that they copied; then go on without them."""
        if kept.open:
            changed = changed_in(self.iterator.watched) or changed_in(self.samplers)
        else:
            kept.open = True
            for _ in range(self.iterator._prefetch_factor * self.iterator._num_workers):
                self.iterator._try_put_index()
            changed = changed_in(self.iterator.watched)  # by a sampler, as an epoch begins
        if changed:
            self.go_on_alone(kept, changed)
        elif kept.given:
            kept.given.popleft()

    def go_on_alone(self, kept: UnreadKept, changed: str) -> None:
        """Read the rest of the epoch, and later ones, in this process: it is the only one to hear of the change.

        Batches that workers have made already are made anew. Where that cannot be, a warning says so.
        """
        loader: typing.Any = self.maker.loader()
        self.kept = None
        told = f"the loop changes {changed} while it reads the loader, of which workers do not hear"
        stream = loader is None or isinstance(loader.dataset, torch.utils.data.IterableDataset)
        if stream or not getattr(loader, "in_order", True):
            warnings.warn(f"{told} before the next epoch: leave out num_workers", stacklevel=4)
            return
        warnings.warn(f"{told}: it goes on without workers, as num_workers=0 has it", stacklevel=4)
        self.maker.alone = True
        self.iterator._shutdown_workers()
        indices = itertools.chain(list(kept.given), kept.unread or ())
        with torch.random.fork_rng(devices=[]), state_kept(loader.generator):
            self.iterator = self.maker.of_class(loader, indices, **ALONE)

    @property
    def present(self) -> typing.Any:
        """PyTorch's iterator: this epoch's own, or the one that it may take over."""
        return self.iterator if self.taken is None else self.taken[0]

    def is_stale(self, loader: typing.Any) -> bool:
        """Whether an object that the workers have a copy of has changed since."""
        return not same_things(getattr(self.present, "given", []), given_to_workers(loader))

    def take_over(self, iterator: typing.Any, before: typing.Any, loader: typing.Any) -> None:
        """Go on with the workers of the epoch before. Start others where that is still read, or they have old data."""
        earlier = before()
        in_use = earlier is not None and not earlier.finished and earlier.iterator is iterator
        if not in_use and not self.is_stale(loader):
            iterator._index_sampler = self.kept
            iterator._reset(loader)
            self.iterator = iterator
        else:
            with torch.random.fork_rng(devices=[]), state_kept(loader.generator):
                self.iterator = self.maker.of_workers(loader, self.kept)
            self.iterator.given = given_to_workers(loader)
        self.taken = None

    def _reset(self, loader: typing.Any, first_iter: bool = False) -> None:
        """Give the loader its next epoch: DataLoader calls this where workers live on, and hands out that epoch."""
        loader._iterator = self.maker.in_turn(lambda: self.maker.after(self, loader))


def draw_seed(loader: typing.Any) -> None:
    """Draw the random number that a new iterator draws."""
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


@contextlib.contextmanager
def state_kept(generator: torch.Generator | None) -> typing.Iterator[None]:
    """Give a generator its state back on leaving."""
    state = None if generator is None else generator.get_state()
    yield
    if generator is not None and state is not None:
        generator.set_state(state)


def keep_draws(copied: typing.Any, loader: typing.Any, began: bool) -> None:
    """Have a copied loader draw as its owner's does, when its workers ``began`` to live on, now or in a copy before."""
    held = vars(copied).pop("_get_iterator", None)
    ours = hasattr(held, "lives_on")  # of another copy of this code too, as where two settings' code is in one file
    once = copied.num_workers > 0 and (held.once if ours else not loader.num_workers)
    lives_on = copied.persistent_workers and (began or (ours and held.lives_on))
    draws_once = held.draws_once if ours else bool(loader.num_workers and loader.persistent_workers)
    draws_once = draws_once and not copied.persistent_workers
    if once or lives_on or draws_once:
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
