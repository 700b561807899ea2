"""Epochs of a DataLoader whose workers were added, or live on, which are read as its owner's would be."""

import collections
import contextlib
import itertools
import threading
import typing
import warnings
import weakref

import torch

from advisor.step.forked import StartForked, forks
from advisor.step.host_draws import AllHostDraws
from advisor.step.owners import is_of_library
from advisor.step.reached import (
    changed_in,
    given_to_workers,
    reached_from,
    same_things,
    seen_by_workers,
    things_in,
    watched_of,
)


class UnreadKept:
    """A sampler that is asked for another iterator only when the last one has been read from.

    It gives nothing before it is ``open``. What it gave stays in ``given`` until the batch is handed out. ``decided``:
    all indices were there as the epoch began, so what becomes of their sampler makes no difference to them.
    """

    def __init__(self, loader: typing.Any) -> None:
        self.sampler = loader._index_sampler
        self.samplers = samplers_of(loader)  # the loader itself may be gone before its batches have been read
        self.open = False
        self.unread: typing.Iterator[typing.Any] | None = None
        self.given: collections.deque[typing.Any] = collections.deque()
        self.decided = False
        self.read_by_samplers: list[typing.Any] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        if self.unread is None:
            self.unread = iter(self.sampler)
            self.decided = is_told_at_once(self.unread)
        return self

    def __next__(self) -> typing.Any:
        if not self.open or self.unread is None:
            raise StopIteration
        self.given.append(next(self.unread))
        frame = getattr(self.unread, "gi_frame", None)
        if frame is not None and isinstance(self.sampler, torch.utils.data.BatchSampler):
            self.decided = is_told_at_once(frame.f_locals.get("sampler_iter"))
        return self.given[-1]

    @property
    def goes_on(self) -> bool:
        """Whether the user's own samplers may still decide on the order of samples while the epoch runs."""
        return not self.decided and not all(is_of_library(type(sampler)) for sampler in self.samplers)

    def read_on(self) -> list[typing.Any]:
        """Return what decides on the later samples of an epoch: the samplers, and what the user's own ones read."""
        if self.goes_on:
            if self.read_by_samplers is None:
                self.read_by_samplers = [one for one, _ in reached_from(self.samplers, things_in)]
            return self.read_by_samplers
        if not self.decided:
            return self.samplers
        return [self.sampler] if hasattr(self.unread, "gi_frame") else []


def samplers_of(loader: typing.Any) -> list[typing.Any]:
    """A loader's samplers, and the one within its batch sampler."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return [sampler for sampler in samplers if sampler is not None]


def is_told_at_once(iterator: typing.Any) -> bool:
    """Whether an iterator goes through a list, a tuple or a range, whose elements were decided when it was made."""
    return isinstance(iterator, (type(iter([])), type(iter(())), type(iter(range(0)))))


# The options under which an iterator reads its samples in this process.
ALONE = {"num_workers": 0, "timeout": 0}
# Longest wait until another thread reads from the epoch that it has asked for, which it does at once. In seconds.
BEGINS_WITHIN_S = 0.5
# Batches at the start that workers get one by one where the owner's own code makes their order as it goes: by then a
# loop that decides on the order, by the losses for example, has been seen to do so. A count.
ASKED_ONE_BY_ONE = 3
# The attribute of a loader with a function that returns the options under which its iterators are made.
READS_WITH = "_reads_with"
DRAWS_EARLIER = (
    "data.num_workers: the sampler draws random numbers from batch to batch, and workers have it do so earlier: the "
    "order is another than without workers, as under another seed"
)


class IteratorsOf:
    """Makes the iterators of a loader whose workers were added or live on: they yield what its owner's would.

    A loader without workers asks its sampler for one iterator in each epoch, when the first batch is asked for.
    PyTorch's loader with workers asks for two, at once: a sampler that counts epochs would skip every other one, and
    two loaders that are read side by side would shuffle in another way. ``once`` has workers do as without them.

    ``lives_on``: the workers were made to live on from epoch to epoch. A loader that starts an iterator for each epoch
    draws a random number each time, on which all later ones depend: the shuffling of the next epoch, dropout. It hears
    what became of the dataset meanwhile, and may be read by two loops at a time. So does and may one whose workers live
    on: where they could not follow, they end, and others start.

    ``draws_once``: the owner's workers lived on, and these do not. They draw in the first epoch only, as those did.

    Where none of these is so, the loader reads its samples in another way, which its attribute ``READS_WITH`` says.
    """

    def __init__(self, loader: typing.Any, once: bool, lives_on: bool, draws_once: bool = False) -> None:
        self.loader = weakref.ref(loader)  # the loader holds this object
        self.once = once
        self.lives_on = lives_on
        self.draws_once = draws_once
        self.seeds: torch.Generator | None = None
        self.alone = False
        self.asked = 0
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
            if not self.once and not self.lives_on:
                return self.of_class(loader)
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
        options = {**getattr(loader, READS_WITH, no_options)(loader), **options}
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
        changed = changed_in(self.iterator.watched) or changed_in(self.samplers)
        if not kept.open and not changed:
            self.ask(kept)
            changed = changed_in(self.iterator.watched)  # by a sampler, as an epoch begins
        if changed:
            self.go_on_alone(kept, changed)
        elif kept.given:
            kept.given.popleft()

    def ask(self, kept: UnreadKept) -> None:
        """Give workers their indices: one batch's while the loop may still turn out to decide on them, else many."""
        maker = self.maker
        maker.asked += 1
        draws = AllHostDraws()
        kept.open = True
        self.iterator._try_put_index()
        if kept.goes_on and maker.asked <= ASKED_ONE_BY_ONE:
            kept.open = False
            if maker.asked == ASKED_ONE_BY_ONE and AllHostDraws() != draws:
                warnings.warn(DRAWS_EARLIER, stacklevel=5)
            return
        for _ in range(self.iterator._prefetch_factor * self.iterator._num_workers - 1):
            self.iterator._try_put_index()

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
        """Keep the workers of the last epoch; start new ones where it is still being read, or their data is old."""
        earlier = before()
        in_use = earlier is not None and not earlier.finished and earlier.iterator is iterator
        if not in_use and not self.is_stale(loader):
            iterator._index_sampler = self.kept
            iterator._reset(loader)
            iterator.watched = watched_of(one for one, _ in iterator.watched)  # what is shared may be another by now
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


def no_options(loader: typing.Any) -> dict[str, typing.Any]:
    """No options beside a loader's own."""
    return {}


def give_options(loader: typing.Any, options: dict[str, typing.Any]) -> None:
    """Set attributes that a DataLoader guards once it is made; properties of its class work as they do there."""
    for name, value in options.items():
        try:
            object.__setattr__(loader, name, value)
        except AttributeError as error:
            raise ValueError(f"{type(loader).__name__} decides on {name} itself") from error
