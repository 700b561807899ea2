"""Whether what a DataLoader sends to its workers can be pickled: forkserver and spawn need that, fork does not."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

_LOOKED_AT_BYTES = 64 * 2**20


def pickle_problem(loader: DataLoader[Any]) -> str:
    """The reason that the dataset, the collate function or the worker's own start cannot be pickled; empty for none.

    The contents of tensors and arrays are passed over, and of a very large dataset only the beginning is looked at:
    the answer is about kinds of objects.
    """
    for what in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            _Pickler(_Sink()).dump(getattr(loader, what))
        except _EnoughError:
            continue
        except Exception as error:  # pickling calls the user's own code, which may raise anything
            return f"{what.replace('_', ' ')}: {str(error) or type(error).__name__}"
    return ""


class _EnoughError(Exception):
    pass


class _Sink:
    """A file that forgets what is written and ends the pickling when it has seen enough."""

    def __init__(self) -> None:
        self._seen_bytes = 0

    def write(self, data: bytes) -> int:
        self._seen_bytes += len(data)
        if self._seen_bytes > _LOOKED_AT_BYTES:
            raise _EnoughError
        return len(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if isinstance(obj, Tensor) or (numpy is not None and isinstance(obj, numpy.ndarray)):
            return int, ()
        return NotImplemented
