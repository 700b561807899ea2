"""DataLoaders of several kinds, and what a recipe makes of one."""

from dataclasses import dataclass

import pytest
import torch
from proposals import CATALOG
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode


class Numbers(Dataset):
    def __getitem__(self, index):
        return torch.tensor(float(index)), torch.get_num_threads()

    def __len__(self):
        return 10


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


@dataclass
class Pair:
    inputs: torch.Tensor
    threads: torch.Tensor


def as_pair(samples):
    return Pair(*(torch.stack([torch.as_tensor(sample[part]) for sample in samples]) for part in (0, 1)))


LOADERS = {
    "map-style": lambda: DataLoader(Numbers(), batch_size=4, num_workers=1),
    "iterable": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
    "batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(10)), 4, drop_last=False), num_workers=1
    ),
    "dataclass": lambda: DataLoader(Numbers(), batch_size=4, num_workers=1, collate_fn=as_pair),
    "whole batches": lambda: DataLoader(Stream(), batch_size=None, num_workers=1),
}


def first_tensor(batch):
    if isinstance(batch, Pair):
        return batch.inputs
    return batch if isinstance(batch, torch.Tensor) else batch[0]


def samples_of(loader):
    return torch.cat([first_tensor(batch).reshape(-1) for batch in loader]).tolist()


def applied(recipe_id, value, loader):
    parts = Components(nn.Linear(1, 1), None, loader, StepPlan(Mode.TRAIN, "cpu"))
    CATALOG[recipe_id].apply(parts, value)
    return parts.data


every_loader = pytest.mark.parametrize("kind", LOADERS)
