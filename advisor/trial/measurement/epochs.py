"""Whether a changed loader asks for the same samples as the original, epoch after epoch."""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from advisor.errors import RefusedError
from advisor.step.draws import seed_host
from advisor.step.loaders import copy_with
from advisor.trial.measurement.draws import side_effects_undone

# Epochs that are compared: what a sampler changes in one shows in the next. A count.
_EPOCHS = 2
# An epoch of more batches than this is broken off. A count: indices of this many take a tenth of a second.
_MOST_BATCHES = 128
# Workers of the comparison at most: two can do all that several do differently. A count.
_MOST_WORKERS = 2
# Samplers of PyTorch's own, which decide on an epoch's order by the seed alone.
_PLAIN = (BatchSampler, RandomSampler, SequentialSampler)


class _Indices(Dataset[Any]):
    """A dataset's indices in the place of its samples, with what the dataset knows of the epoch where it is asked."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> tuple[str, str]:
        held = vars(self.dataset) if hasattr(self.dataset, "__dict__") else {}
        plain = {name: value for name, value in held.items() if isinstance(value, bool | int | float | str)}
        return repr(index), repr(plain)


def check_epochs(original: Any, changed: Any, seed: int) -> None:
    """Raise RefusedError where a changed loader asks for other samples, or for the same in another order.

    Two epochs of indices are compared; no sample is read. What PyTorch's own samplers do is known.
    """
    if changed is original or not _has_own_order(original) or not isinstance(changed, DataLoader):
        return
    if changed.batch_size != original.batch_size:
        return
    expected, found = (_asked_for(original, original, seed), _asked_for(original, changed, seed))
    if expected is None or found is None or expected == found:
        return
    if [[index for index, _ in one] for one in expected] != [[index for index, _ in one] for one in found]:
        owner = type(_index_sampler(original)).__name__
        raise RefusedError(
            f"the batches would come in another order: {owner} keeps count while it is read, and a loader with workers "
            "reads it ahead; let it decide on the order by set_epoch() or a seed"
        )
    raise RefusedError(
        "the sampler changes the dataset as an epoch begins, which worker processes do not hear of; "
        "let the dataset decide by the index it is asked for"
    )


def _has_own_order(loader: Any) -> bool:
    """Whether a sampler of the user's own decides which samples form a batch."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    samplers = (loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(sampler is not None and type(sampler) not in _PLAIN for sampler in samplers)


def _index_sampler(loader: Any) -> Any:
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return loader.sampler if type(sampler) in _PLAIN else sampler


def _asked_for(original: Any, loader: Any, seed: int) -> list[list[tuple[str, str]]] | None:
    """The indices of the samples in some epochs of a loader; None where they cannot be observed."""
    with side_effects_undone(original):
        try:
            seed_host(seed)
            copied = copy_with(
                loader,
                dataset=_Indices(loader.dataset),
                collate_fn=_flat,
                num_workers=min(loader.num_workers, _MOST_WORKERS),
                multiprocessing_context=None,
                pin_memory=False,
                worker_init_fn=None,
            )
            return _read(copied)
        except Exception:  # a loader of any class; what its batches are is compared by their prints
            return None


def _read(loader: DataLoader[Any]) -> list[list[tuple[str, str]]]:
    """The indices of some epochs, with what the dataset knew of each; nothing where workers do not hear of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = [list(itertools.chain.from_iterable(itertools.islice(loader, _MOST_BATCHES))) for _ in range(_EPOCHS)]
    left_its_workers = getattr(vars(loader).get("_get_iterator"), "alone", False)
    return [[(index, "") for index, _ in one] for one in asked] if left_its_workers else asked


def _flat(samples: Any) -> list[tuple[str, str]]:
    return list(samples) if isinstance(samples, Sequence) and not isinstance(samples[0], str) else [samples]
