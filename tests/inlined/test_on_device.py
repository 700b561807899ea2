"""Data kept on the device: the same batches as the loader's own, read and transformed as a whole."""

import numpy as np
import pytest
import torch
from loaders import CATALOG, applied
from tiny_mnist import write_mnist
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchvision import transforms, tv_tensors
from torchvision.datasets import CIFAR10, MNIST, SVHN, FakeData
from torchvision.transforms import v2

from advisor.errors import RefusedError
from advisor.inlined.on_device import collated, kept_on_device
from advisor.step.loader import on_device_problem

OLD = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.2,))])
NEW = v2.Compose(
    [v2.ToImage(), v2.CenterCrop(6), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2, 0.4, 0.8])]
)
AUGMENTED = transforms.Compose(
    [transforms.RandomCrop(8, padding=2), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
AUGMENTED_ANEW = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomVerticalFlip(),
        v2.RandomCrop((8, 6), padding=1, padding_mode="reflect"),
        v2.RandomHorizontalFlip(0.3),
        v2.ToDtype(torch.float32, scale=True),
    ]
)
UNEVEN = v2.Compose([v2.RandomCrop(8, padding=(0, 2)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
UNEVEN_OLD = transforms.Compose([transforms.RandomCrop(8, padding=(1, 2, 3, 0)), transforms.ToTensor()])
CROPPED = transforms.Compose([transforms.RandomCrop((8, 5)), transforms.Pad(1, fill=7), transforms.ToTensor()])
OF_TYPES = v2.Compose([v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)])
FILLED = transforms.Compose([transforms.RandomCrop(8, padding=2, fill=(9, 8, 7)), transforms.ToTensor()])


def mnist(folder, transform=OLD):
    write_mnist(folder)
    return MNIST(folder, transform=transform)


def in_color(kind, transform):
    """A dataset of pictures of random bytes, as torchvision reads them from its archives."""
    dataset = kind.__new__(kind)
    shape = (40, 3, 8, 8) if kind is SVHN else (40, 8, 8, 3)
    dataset.data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = (np.arange(40) % 10).tolist()
    dataset.transform, dataset.target_transform = transform, None
    dataset.classes = [str(number) for number in range(10)]
    if kind is SVHN:
        dataset.labels = np.array(labels)
    else:
        dataset.targets = labels
    return dataset


def on_device(loader):
    """The loader as the recipe makes it anew."""
    return applied("on_device", True, loader)


def tensors(folder=None):
    return TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10) % 3 == 0)


DATASETS = {
    "tensors": tensors,
    "subset of tensors": lambda folder: Subset(Subset(tensors(), range(3, 9)), [4, 0, 0, 2, 1, 1, 5, 3]),
    "mnist": mnist,
    "subset": lambda folder: Subset(mnist(folder), range(3, 30)),
    "cifar": lambda folder: in_color(CIFAR10, NEW),
    "svhn": lambda folder: in_color(SVHN, OLD),
    "augmented": lambda folder: in_color(CIFAR10, AUGMENTED),
    "augmented by v2": lambda folder: in_color(CIFAR10, AUGMENTED_ANEW),
    "cropped": lambda folder: in_color(SVHN, CROPPED),
    "uneven by v2": lambda folder: in_color(CIFAR10, UNEVEN),
    "uneven": lambda folder: in_color(CIFAR10, UNEVEN_OLD),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
def test_batches_are_those_of_the_loader_with_the_same_draws(make, tmp_path):
    loader = DataLoader(make(tmp_path), batch_size=7, shuffle=True)
    found = []
    for one in (loader, on_device(loader)):
        torch.manual_seed(3)
        found.append(list(one))
    assert len(found[0]) == len(found[1]) > 1
    for (images, labels), (others, same) in zip(*found, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, same)
        assert (images.dtype, labels.dtype) == (others.dtype, same.dtype)


def test_the_dataset_is_as_before_for_those_who_ask_it():
    loader = on_device(DataLoader(in_color(CIFAR10, NEW), batch_size=7, num_workers=2, persistent_workers=True))
    assert (loader.num_workers, loader.persistent_workers, loader.pin_memory) == (0, False, False)
    assert (len(loader.dataset), loader.dataset.classes[3], loader.dataset[5][1]) == (40, "3", 5)


class Own(CIFAR10):
    def __getitem__(self, index):
        return super().__getitem__(39 - index)


def rotated(folder):
    return mnist(folder, transforms.Compose([transforms.RandomRotation(10), transforms.ToTensor()]))


def relabelled(folder):
    dataset = mnist(folder)
    dataset.target_transform = int.__neg__
    return dataset


def labelled(labels):
    dataset = in_color(CIFAR10, NEW)
    dataset.targets = labels
    return DataLoader(dataset)


def of_ones_own(name):
    """A transform of a user's own class, which has the name of one of torchvision's."""
    return DataLoader(in_color(CIFAR10, v2.Compose([type(name, (v2.Identity,), {"__module__": "mine"})(), NEW])))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: DataLoader(rotated(folder)), "RandomRotation"),
        (lambda folder: DataLoader(mnist(folder, transforms.Lambda(np.array))), "Lambda"),
        (lambda folder: DataLoader(mnist(folder), collate_fn=list), "its own collate_fn"),
        (lambda folder: DataLoader(tensors(), batch_size=None), "does not form batches"),
        (lambda folder: DataLoader(in_color(Own, OLD)), "neither a TensorDataset"),
        (lambda folder: DataLoader(FakeData(8, transform=OLD)), "does not hold its images in memory"),
        (lambda folder: DataLoader([torch.rand(3)]), "neither a TensorDataset"),
        (
            lambda folder: DataLoader(type("Reads", (), {"__len__": [1].__len__, "__getitem__": [1].__getitem__})()),
            "neither a TensorD",
        ),
        (lambda folder: DataLoader(relabelled(folder)), "target_transform"),
        (lambda folder: DataLoader(in_color(CIFAR10, OF_TYPES)), "ToDtype"),
        (lambda folder: DataLoader(in_color(CIFAR10, FILLED)), "RandomCrop"),
        (lambda folder: labelled([0.1] * 40), "not one integer"),
        (lambda folder: labelled([[0.1, 0.9]] * 40), "not one integer"),
        (lambda folder: labelled([[0, 1]] * 40), "not one integer"),
        (lambda folder: labelled([True] * 40), "not one integer"),
        (lambda folder: labelled(["cat"] * 40), "not one integer"),
        (lambda folder: of_ones_own("Normalize"), "Normalize"),
        (lambda folder: of_ones_own("Compose"), "Compose"),
    ],
)
def test_other_datasets_are_left_alone(make, said, tmp_path):
    loader = make(tmp_path)
    assert said in on_device_problem(loader)
    with pytest.raises(RefusedError, match=said):
        on_device(loader)


def test_an_exported_loader_of_another_dataset_stays_as_it_is(tmp_path):
    dataset = rotated(tmp_path)
    assert kept_on_device(dataset, "cpu") is dataset
    loader = DataLoader(dataset, batch_size=4, collate_fn=collated)
    assert [tensor.shape for tensor in next(iter(loader))] == [(4, 1, 8, 8), (4,)]


@pytest.mark.parametrize(
    "key", ["data.num_workers", "data.persistent_workers", "data.prefetch_factor", "data.pin_memory"]
)
def test_settings_of_workers_and_copies_do_not_go_with_it(key):
    assert CATALOG.conflict({"data.on_device": True, key: 2})
    assert not CATALOG.conflict({"data.on_device": True, key: 0})
