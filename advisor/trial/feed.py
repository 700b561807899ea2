"""Feed: the endless stream of batches that a trial's steps consume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.errors import TargetError
from advisor.runtime.loader import batches_in, is_loader


class Feed:
    """Batches from a loader, epoch after epoch, or the one resident batch again and again."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._loader: Any = data if is_loader(data) else None
        self._iterator: Iterator[Any] | None = None
        self._served = 0

    def next(self) -> Any:
        """The next batch; a new epoch begins where one ends. Raises TargetError when an epoch yields nothing."""
        if self._loader is None:
            return self._data
        if self._iterator is None:
            self._iterator = iter(self._loader)
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            batch = self._first_of_epoch()
        self._served += 1
        return batch

    def _first_of_epoch(self) -> Any:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            raise self._empty() from None

    def _empty(self) -> TargetError:
        if not self._served:
            return TargetError("the DataLoader yields no batch.", "Check its dataset, sampler and drop_last.")
        return TargetError(
            f"the DataLoader yields nothing after its first {self._served} batches: its dataset can be read once only.",
            "Let the dataset's __iter__ start from the beginning each time, or give build() one batch.",
        )

    @property
    def resident(self) -> bool:
        """Whether every step gets the same batch, which is on the device already."""
        return self._loader is None

    @property
    def queued_batches(self) -> int:
        """How many batches workers may have ready before the first step: they must be consumed before timing."""
        if self._loader is None or self._loader.num_workers == 0:
            return 0
        return int(self._loader.num_workers * (self._loader.prefetch_factor or 2))

    def cycle(self, most_steps: int) -> int:
        """After how many steps the work of a loader's workers repeats: an epoch of no more than ``most_steps``.

        Of longer epochs it is a batch of each worker, which finish theirs at about the same time.
        """
        workers = self._loader.num_workers if self._loader is not None else 0
        if not workers:
            return 1
        epoch = batches_in(self._loader)
        return epoch if epoch and epoch <= most_steps else max(1, min(workers, most_steps))
