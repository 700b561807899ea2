"""Feed: the endless stream of batches that a trial's steps consume."""

from collections.abc import Iterator
from typing import Any

from advisor.errors import TargetError
from advisor.step.loader import length_of
from advisor.step.prefetch import is_loader
from advisor.trial.measurement.draws import loader_failure, no_batch
from advisor.workloads.draws import seed_host

_END = object()


class Feed:
    """Batches from a loader, epoch after epoch, or the one resident batch again and again.

    With a ``seed`` the first epoch begins under it.
    """

    def __init__(self, data: Any, seed: int | None = None) -> None:
        self._data = data
        self._seed = seed
        # An exported Python file wraps a loader in a class of its own.
        self._loader: Any = data if is_loader(data) or is_loader(getattr(data, "loader", None)) else None
        self._iterator: Iterator[Any] | None = None
        self._served = 0

    def next(self) -> Any:
        """The next batch; a new epoch begins where one ends. Raises TargetError when an epoch yields nothing."""
        if self._loader is None:
            return self._data
        if self._iterator is None:
            if self._seed is not None:
                seed_host(self._seed)
            self._iterator = iter(self._loader)
        batch = self._drawn()
        if batch is _END:
            # Dropped first, as a `for` loop does: its workers have ended before those of the next epoch start.
            self._iterator = None
            self._iterator = iter(self._loader)
            batch = self._drawn()
        if batch is _END and not self._served:
            raise no_batch()
        if batch is _END:
            raise TargetError(
                f"the DataLoader yields nothing after its first {self._served} batches: its dataset can be read once "
                "only.",
                "Let the dataset's __iter__ start from the beginning each time, or give build() one batch.",
            )
        self._served += 1
        return batch

    def _drawn(self) -> Any:
        """The epoch's next batch, or ``_END``. Raises TargetError when the loader fails."""
        assert self._iterator is not None
        try:
            return next(self._iterator, _END)
        except Exception as error:
            raise loader_failure(error, self._served + 1) from error

    @property
    def resident(self) -> bool:
        """Whether every step gets the same batch, which is on the device already."""
        return self._loader is None

    @property
    def queued_batches(self) -> int:
        """The number of batches that workers may have ready before the first step: consume them before timing."""
        if self._loader is None or self._loader.num_workers == 0:
            return 0
        return int(self._loader.num_workers * (self._loader.prefetch_factor or 2))

    def cycle(self, most_steps: int) -> int:
        """Number of steps after which the work of a loader's workers repeats: an epoch of no more than ``most_steps``.

        Of longer epochs it is a batch of each worker, which finish theirs at about the same time.
        """
        workers = self._loader.num_workers if self._loader is not None else 0
        if not workers:
            return 1
        epoch = length_of(self._loader)
        return epoch if epoch and epoch <= most_steps else max(1, min(workers, most_steps))
