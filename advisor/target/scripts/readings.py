"""What a script's loop reads with ``next`` once it runs by itself, from iterators made while it was watched."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

# An iterator over a loader that a script made while it was watched, which has no workers: its loader.
Iterators = MutableMapping[Any, Any]


class Readings:
    """The reads of a loop, directly or through generators and classes of the script's own.

    An iterator over ``fed`` gives the batch at hand, once in each round. Any other is read anew, with the workers that
    its loader has.
    """

    def __init__(self, iterators: Iterators, fed: Any = None) -> None:
        self._iterators = iterators
        self._fed = fed
        self._anew: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def of(self, batch: Any) -> Iterator[None]:
        """Let the script's iterators give this batch in one round."""
        iterators: Any = _BaseDataLoaderIter
        original = iterators.__next__
        at_hand = [batch]

        def read(iterator: Any) -> Any:
            loader = self._iterators.get(iterator)
            if loader is None:
                return original(iterator)
            if loader is self._fed and at_hand:
                return at_hand.pop()
            if iterator not in self._anew:
                self._anew[iterator] = iter(loader)
            return original(self._anew[iterator])

        iterators.__next__ = read
        try:
            yield
        finally:
            iterators.__next__ = original
