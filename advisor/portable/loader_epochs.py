"""Epochs of a DataLoader whose workers were added, or were made to live on, which are read as its owner's would be."""

import threading
import typing
import weakref

import torch

from advisor.portable.forked import StartForked, forks
from advisor.portable.reached import given_to_workers, same_things

# The attribute of a loader with a function that returns the options under which its iterators are made.
READS_WITH = "_reads_with"
ITERATOR_OF_WORKERS = torch.utils.data.dataloader._MultiProcessingDataLoaderIter


class IteratorsOf:
    """Makes the iterators of a loader with workers that were added, or that live on.

    ``added``: the owner's loader has no workers. Then they read open files by themselves, and the sampler is asked for
    one iterator an epoch.

    ``lives_on``: the workers were made to live on from epoch to epoch (:class:`LivingOn`).

    Where neither is so, the loader reads its samples in another way, which its attribute ``READS_WITH`` says.
    """

    def __init__(self, loader: typing.Any, added: bool, lives_on: bool) -> None:
        self.loader = weakref.ref(loader)  # the loader holds this object
        self.added = added
        self.lives_on = lives_on
        self.lock = threading.Lock()

    def __reduce__(self) -> typing.Any:
        return IteratorsOf, (self.loader(), self.added, self.lives_on)

    def __call__(self) -> typing.Any:
        """The iterator that the loader's class makes under the options of this one."""
        loader: typing.Any = self.loader()
        with self.lock:  # one thread at a time gives the loader other options
            options = getattr(loader, READS_WITH, no_options)(loader)
            if self.added:
                options |= options_of_added(loader)
            held = {name: getattr(loader, name) for name in options}
            try:
                give_options(loader, options)
                iterator = type(loader)._get_iterator(loader)
            finally:
                give_options(loader, held)
        if self.lives_on and type(iterator) is ITERATOR_OF_WORKERS:
            iterator.__class__ = LivingOn
            vars(iterator)["given"] = given_to_workers(loader)
        return iterator


def options_of_added(loader: typing.Any) -> dict[str, typing.Any]:
    """The options of an iterator with workers that its loader did not have."""
    indices = "sampler" if loader.batch_sampler is None else "batch_sampler"
    options: dict[str, typing.Any] = {indices: AskedOnce(loader._index_sampler)}
    if forks(loader):
        options["worker_init_fn"] = StartForked(loader.worker_init_fn)
    return options


class AskedOnce:
    """A sampler that is asked for another iterator only when the last one has been read from.

    A loader with workers asks for two as its first epoch begins: a sampler that counts epochs would skip every other.
    """

    def __init__(self, sampler: typing.Any) -> None:
        self.sampler = sampler
        self.iterator: typing.Any = None
        self.begun = False

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        if self.iterator is None or self.begun:
            self.iterator, self.begun = iter(self.sampler), False
        return self

    def __next__(self) -> typing.Any:
        self.begun = True
        return next(self.iterator)


class LivingOn(ITERATOR_OF_WORKERS):
    """An iterator whose workers were made to live on from epoch to epoch.

    A loader that starts an iterator for each epoch draws a random number each time, on which all later ones depend:
    the shuffling of the next epoch, dropout. It hears what became of the dataset meanwhile, and may be read by two
    loops at a time. So does and may one whose workers live on: where they could not follow, others are started.
    """

    given: typing.Any

    def _reset(self, loader: typing.Any, first_iter: bool = False) -> None:
        if self._rcvd_idx < self._send_idx or not same_things(self.given, given_to_workers(loader)):
            loader._iterator = loader._get_iterator()
            return
        iter(self._index_sampler)  # before the number is drawn and after it, as a new iterator does
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        super()._reset(loader, first_iter)


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
