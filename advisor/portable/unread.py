"""The indices of an epoch's samples, given to workers one batch after another and no earlier than without workers."""

import collections
import typing

import torch

from advisor.portable.owners import is_of_library
from advisor.portable.reached import reached_from, things_in


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
        """Whether code of the loader's owner decides on the order of samples as the epoch goes on."""
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
    """A loader's samplers, also the one within its batch sampler."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return [sampler for sampler in samplers if sampler is not None]


def is_told_at_once(iterator: typing.Any) -> bool:
    """Whether an iterator goes through a list, a tuple or a range, whose elements were decided when it was made."""
    return isinstance(iterator, (type(iter([])), type(iter(())), type(iter(range(0)))))
