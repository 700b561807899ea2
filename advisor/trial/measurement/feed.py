"""Feed: the endless stream of batches that a trial's steps consume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.errors import TargetError
from advisor.portable.device_loader import DeviceLoader
from advisor.records import BatchPrint
from advisor.runtime.loader import batches_in, is_loader
from advisor.trial.measurement.data_prints import print_of
from advisor.trial.measurement.draws import begun_early, loader_failure, seed_host
from advisor.trial.measurement.forms import Form, form_of, form_problem

# Batches at the beginning of a trial whose prints are kept. A count: enough for two of each of two workers.
_PRINTED = 4
_END = object()


class Feed:
    """Batches from a loader, epoch after epoch, or the one resident batch again and again.

    With a ``seed`` the first epoch begins under it, and ``prints`` tells what the first batches were.
    """

    def __init__(self, data: Any, seed: int | None = None) -> None:
        self._data = data
        self._seed = seed
        self._prints: list[BatchPrint] = []
        self._printed = _PRINTED if seed is not None and _in_order(data) else 0
        self._loader: Any = data if is_loader(data) else None
        self._iterator: Iterator[Any] | None = None
        self._served = 0
        self._first: Form | None = None

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
        if batch is _END:
            raise self._empty()
        self._served += 1
        if self._first is None:
            self._first = form_of(batch)
        if self._served <= self._printed:
            self._prints.append(print_of(batch))
        return batch

    @property
    def prints(self) -> tuple[BatchPrint, ...]:
        """The first batches that the loop got; none where their order depends on more than the seed."""
        return tuple(self._prints)

    def problem_of(self, error: Exception, batch: Any) -> TargetError | None:
        """The error for a step that failed on the last batch, where that is of another form than the first."""
        return None if self._first is None else form_problem(error, self._first, batch, self._served)

    def _drawn(self) -> Any:
        """The epoch's next batch, or ``_END``. Raises TargetError when the loader fails."""
        assert self._iterator is not None
        try:
            return next(self._iterator, _END)
        except Exception as error:
            raise loader_failure(error, self._served + 1) from error

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
        """The number of batches that workers may have ready before the first step: consume them before timing."""
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


def _in_order(data: Any) -> bool:
    """Whether a loader's batches come in an order that the seed decides as the loop begins."""
    loader = data.loader if isinstance(data, DeviceLoader) else data
    if not is_loader(data) or begun_early(loader):
        return False
    return bool(getattr(loader, "in_order", True) or loader.num_workers <= 1)
