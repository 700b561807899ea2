"""Loaders and datasets with classes of their own, of which settings have to keep everything."""

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
)


class Numbers(Dataset):
    def __getitem__(self, index):
        return torch.tensor([float(index)]), index % 4

    def __len__(self):
        return 24


class Pairs(Numbers):
    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([index % 4])


class Sevens(DataLoader):
    """Does work of its own in ``__iter__``, and has attributes and methods of its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, collate_fn=self.joined, **options)
        self.epoch, self.scale = 3, 7.0

    def joined(self, samples):
        return torch.cat([sample[0] for sample in samples]), torch.tensor([sample[1] for sample in samples])

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for inputs, labels in super().__iter__():
            yield inputs * 0 + self.scale, labels


class Endless(DataLoader):
    """As loaders that keep their workers: an iterator of its own over a sampler that repeats."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Wrapper(DataLoader):
    """As Accelerate's: everything is the inner loader's, and no constructor of DataLoader ran."""

    def __init__(self, inner):
        self.__dict__["inner"] = inner

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __iter__(self):
        return ([inputs + 1, labels] for inputs, labels in self.inner)

    def __len__(self):
        return len(self.inner)


def contents(loader):
    return [[part.tolist() for part in batch] for batch in loader]


class Counted(DataLoader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.batches = len(self.batch_sampler)

    def __len__(self):
        return self.batches


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(12.0))
