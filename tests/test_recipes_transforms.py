"""Transforms of samples that are done on whole batches, on the device."""

import random

import pytest
import torch
from facts import gpu_facts, loader_facts, profile_facts
from loaders import WAITS_LITTLE, Stream, exported
from proposals import CATALOG, proposed, reason
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import FakeData
from torchvision.transforms import Compose, Normalize, ToTensor, v2

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.prefetch import loop_loader
from advisor.step.transforms import names_of_moved

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


def split_by_file(loader):
    _, names = exported({"data.transforms_on_device": True})
    return names["prepare"](nn.Linear(1, 1), None, loader)[2]


class ByCode:
    """A loader and the transform of its batches, as the recipe's code leaves them."""

    def __init__(self, loader):
        names = {"torch": torch, "loader": loader}
        exec(CATALOG["gpu_transforms"].code(True), names)
        self.loader, self.transform = names["loader"], names["device_transform"]

    def __iter__(self):
        return map(self.transform, self.loader)


@pytest.mark.parametrize("split", [split_by_apply, split_by_file, ByCode])
@pytest.mark.parametrize("kind", DATASETS)
def test_transforms_on_batches_do_what_they_did_to_samples(split, kind):
    loader = DataLoader(DATASETS[kind](), batch_size=2)
    tuned = split(loader)
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
    assert names_of_moved(loader) == ["ToDtype", "Normalize"]
    assert names_of_moved(DataLoader(DATASETS["the older transforms"]())) == ["Normalize"]


def test_the_users_random_numbers_are_not_touched():
    loader = DataLoader(DATASETS["torchvision's"](), batch_size=2)
    torch.manual_seed(3)
    random.seed(3)
    state, other = torch.get_rng_state(), random.getstate()
    names_of_moved(loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == other


def one_mean_per_batch(samples):
    images = torch.stack([image.float() for image, _ in samples])
    return images - images.mean(), torch.tensor([label for _, label in samples])


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (lambda: DataLoader(pictures(v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()]))), "do not end in one"),
        (lambda: DataLoader(pictures(None), collate_fn=list), "do not end in one"),
        (lambda: DataLoader(Hidden()), "do not end in one"),
        (lambda: DataLoader(Stream()), "iterable"),
        (lambda: DataLoader(DATASETS["torchvision's"](), batch_size=None), "whole batches"),
        (
            lambda: DataLoader(DATASETS["torchvision's"](), collate_fn=one_mean_per_batch),
            "give other results for a batch",
        ),
        (lambda: DataLoader(DATASETS["torchvision's"](), collate_fn=lambda samples: samples[0][1]), "not known"),
    ],
)
def test_what_cannot_be_moved_says_why(loader, expected):
    with pytest.raises(ValueError, match=expected):
        names_of_moved(loader())


def test_moving_is_tried_where_there_is_something_to_move():
    moved = loader_facts(movable_transforms=("ToDtype", "Normalize"))
    facts = gpu_facts(loader=moved, profile=profile_facts())
    assert proposed("gpu_transforms", facts) == [True]
    assert CATALOG["gpu_transforms"].why(facts, True).endswith("ToDtype, Normalize can be moved.")
    assert "0.3 % of the step" in reason("gpu_transforms", gpu_facts(loader=moved, profile=WAITS_LITTLE))
    assert "iterable" in reason("gpu_transforms", gpu_facts(loader=loader_facts(transforms_problem="it is iterable")))
    assert "DataLoader" in reason("gpu_transforms", gpu_facts())


def test_both_go_together_in_the_file():
    source, names = exported({"data.transforms_on_device": True, "data.device_prefetch": True, "data.num_workers": 1})
    assert source.count("loader = DeviceLoader(") == 1
    loader = DataLoader(Named(v2.Compose(TAIL)), batch_size=2)
    tuned = names["prepare"](nn.Linear(1, 1), None, loader)[2]
    assert tuned.num_workers == 1
    torch.testing.assert_close(images_of(seeded_batches(tuned)[0]), images_of(seeded_batches(loader)[0]))
