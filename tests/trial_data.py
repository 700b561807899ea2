"""Datasets and loaders for tests of what a trial sees of its data, and what it reports of them."""

import random
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, Dataset

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.trial.measurement.draws import (
    fingerprint_of_data,
    first_batches,
)
from advisor.trial.measurement.feed import Feed

PLAN = StepPlan(Mode.TRAIN, "cpu")


SEED = 5


class Images(Dataset):
    """Images that are augmented by the generators that people use, and labels that are not."""

    def __init__(self, augment=True):
        self.augment = augment
        self.calls = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.calls += 1
        noise = torch.rand(3) + random.random() if self.augment else torch.zeros(3)
        return noise + index, index


class Sevens(DataLoader):
    def __iter__(self):
        return ([images * 0 + 7, labels] for images, labels in super().__iter__())


def plain(**options):
    return DataLoader(Images(augment=False), batch_size=4, **options)


def augmented(**options):
    return DataLoader(Images(), batch_size=4, **options)


def seen(loader, *, twice=True, steps=4):
    """What a trial reports of its data."""
    batches = first_batches(loader, SEED, 5, plan=PLAN)
    data = fingerprint_of_data(loader, batches, SEED, PLAN, twice=twice)
    feed = Feed(loader, SEED)
    for _ in range(steps):
        feed.next()
    return replace(data, fed=feed.prints)
