"""Transforms of samples that are done on whole batches, on the device."""

import pytest
import torch
from loaders import Stream
from proposals import CATALOG
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import FakeData
from torchvision.transforms import Compose, Normalize, ToTensor, v2

from advisor.errors import RefusedError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.device_loader import loop_loader, without_last_transforms

NORMALISE = v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.2])
TAIL = [v2.ToDtype(torch.float32, scale=True), NORMALISE]


def pictures(transform, **options):
    return FakeData(6, (3, 8, 8), num_classes=3, transform=transform, **options)


class Named(Dataset):
    """Samples are dicts; a transform in an attribute."""

    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        image = torch.full((3, 4, 4), 20 * index, dtype=torch.uint8)
        return {"image": self.transform(image), "label": index, "name": f"picture {index}"}

    def __len__(self):
        return 5


class Hidden(Named):
    def __init__(self):
        pass

    def transform(self, image):
        return NORMALISE(image.float())


DATASETS = {
    "torchvision's": lambda: pictures(v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), *TAIL])),
    "a subset": lambda: Subset(pictures(v2.Compose([v2.ToImage(), *TAIL])), [5, 3, 1]),
    "a dict with names": lambda: Named(v2.Compose([v2.RandomVerticalFlip(), *TAIL])),
    "nothing but movable ones": lambda: Named(v2.Compose(TAIL)),
    "the older transforms": lambda: pictures(Compose([ToTensor(), Normalize([0.5] * 3, [0.1] * 3)])),
}


def images_of(batch):
    return batch["image"] if isinstance(batch, dict) else batch[0]


def seeded_batches(loader):
    torch.manual_seed(7)
    return list(loader)


def split_by_apply(loader):
    parts = Components(nn.Linear(1, 1), None, loader, StepPlan(Mode.TRAIN, "cpu"))
    CATALOG["gpu_transforms"].apply(parts, True)
    return loop_loader(parts.data, parts.plan)


@pytest.mark.parametrize("kind", DATASETS)
def test_transforms_on_batches_do_what_they_did_to_samples(kind):
    loader = DataLoader(DATASETS[kind](), batch_size=2)
    tuned = split_by_apply(loader)
    before, after = seeded_batches(loader), seeded_batches(tuned)
    assert len(after) == len(before) > 1
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(images_of(new), images_of(old))
        if isinstance(old, dict):
            assert new["name"] == old["name"]
            assert torch.equal(new["label"], old["label"])


def test_what_travels_to_the_device_is_smaller():
    loader = DataLoader(DATASETS["torchvision's"](), batch_size=2)
    split = split_by_apply(loader)
    assert images_of(next(iter(split.loader))).dtype == torch.uint8
    assert images_of(next(iter(loader))).dtype == torch.float32
    assert split.dataset is not loader.dataset


@pytest.mark.parametrize(
    ("dataset", "moved"),
    [
        (DATASETS["torchvision's"](), ["ToDtype", "Normalize"]),
        (DATASETS["the older transforms"](), ["Normalize"]),
        (Subset(Subset(Named(NORMALISE), [0]), [0]), ["Normalize"]),
        (pictures(v2.Compose([v2.ToImage(), *TAIL, v2.RandomHorizontalFlip()])), []),
        (pictures(v2.RandomApply([NORMALISE])), []),
        (pictures(None), []),
        (Hidden(), []),
        (Stream(), []),
    ],
)
def test_the_last_transforms_of_torchvisions_are_moved(dataset, moved):
    assert [type(transform).__name__ for transform in without_last_transforms(dataset)[1]] == moved
    if not moved:
        with pytest.raises(RefusedError, match="does not end in a transform that can run on whole batches"):
            split_by_apply(DataLoader(dataset))
