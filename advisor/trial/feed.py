"""Feed: the endless stream of batches that a trial's steps consume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.errors import TargetError
from advisor.runtime.loader import is_loader


class Feed:
    """Batches from a loader, epoch after epoch, or the one resident batch again and again."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._loader: Any = data if is_loader(data) else None
        self._iterator: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next batch; a new epoch begins where one ends. Raises TargetError when a loader yields nothing."""
        if self._loader is None:
            return self._data
        if self._iterator is None:
            self._iterator = iter(self._loader)
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
        try:
            return next(self._iterator)
        except StopIteration:
            raise TargetError("the DataLoader yields no batch.", "Check its dataset, sampler and drop_last.") from None

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
