"""Image files decoded in another way: the same images, but for single grey levels or another interpolation."""

import pickle

import numpy as np
import pytest
import torch
from loaders import applied
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from advisor.errors import RefusedError
from advisor.inlined.decoding import ReducedResize, decoded
from advisor.trial.inspection import _decoding_problem

USUAL = transforms.Compose(
    [
        transforms.RandomResizedCrop(16),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,), (0.2,)),
    ]
)
NEWER = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
TRANSFORMS = {
    "usual": USUAL,
    "validation": transforms.Compose([transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor()]),
    "v2": NEWER,
    "bytes": v2.Compose([v2.Resize((18, 16)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]),
    "other transforms": transforms.Compose(
        [transforms.RandomResizedCrop(16), transforms.ColorJitter(0.4), np.asarray, transforms.ToTensor()]
    ),
}
# Colours and grey, with and without an alpha channel, and a PNG file by the name of a JPEG one.
FILES = {"a.jpg": "RGB", "b.jpg": "L", "c.png": "RGBA", "d.jpeg": "CMYK", "e.png": "L", "f.png": "P", "g.jpg": "PNG"}


def picture(width, height, mode="RGB"):
    rows, columns = np.mgrid[0:height, 0:width] / max(width, height)
    colours = [128 + 100 * np.sin(7 * rows + shift) * np.cos(5 * columns - shift) for shift in range(3)]
    return Image.fromarray(np.stack(colours, -1).astype(np.uint8)).convert(mode)


def folder_of(path, size=(48, 40), files=FILES):
    (path / "class").mkdir()
    for name, mode in files.items():
        is_png = mode == "PNG"
        picture(*size, "RGB" if is_png else mode).save(path / "class" / name, format=mode if is_png else None)
    return path


def samples_of(dataset):
    torch.manual_seed(5)
    return [dataset[index][0] for index in range(len(dataset))]


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize(
    ("how", "size", "levels"),
    [
        ("torchvision", (30, 28), 1),
        ("torchvision", (400, 300), 1),
        ("reduced", (30, 28), 0),
        ("reduced", (400, 300), 2),
    ],
)
def test_images_are_those_of_pillow_but_for_grey_levels(how, size, levels, kind, tmp_path):
    dataset = ImageFolder(folder_of(tmp_path, size), transform=TRANSFORMS[kind])
    level = (5 if kind == "usual" else 1) / 255  # divided by the deviation of 0.2
    for old, new in zip(samples_of(dataset), samples_of(decoded(dataset, how)), strict=True):
        assert (old.shape, old.dtype, type(old)) == (new.shape, new.dtype, type(new))
        assert (old - new).abs().mean() <= levels * level


def test_a_loader_and_part_of_a_dataset_are_changed_in_a_copy(tmp_path):
    dataset = ImageFolder(folder_of(tmp_path, files={"a.jpg": "RGB", "b.jpg": "RGB"}), transform=USUAL)
    for how in ("torchvision", "reduced"):
        tuned = applied("image_decode", how, DataLoader(Subset(dataset, [1, 0]), batch_size=2))
        assert next(iter(tuned))[0].shape == (2, 3, 16, 16)
        assert tuned.dataset.dataset.classes == ["class"]
        assert pickle.loads(pickle.dumps(tuned.dataset))[0][1] == 0, "workers that are not forked get it so"
    assert dataset.loader is default_loader
    assert dataset.transform is USUAL


@pytest.mark.parametrize(("side", "scale"), [(16, 8), (33, 8), (60, 4), (100, 2), (200, 1), (500, 1)])
def test_a_file_is_decoded_at_the_smallest_size_that_is_no_less_than_wanted(side, scale, tmp_path):
    picture(401, 303).save(tmp_path / "photo.jpg")
    photo = Image.open(tmp_path / "photo.jpg")
    assert ReducedResize(transforms.Resize(side))(photo).size == (side * 401 // 303, side)
    assert photo.size == (-(-401 // scale), -(-303 // scale))


def test_the_part_that_is_drawn_decides_the_size(tmp_path):
    picture(400, 400).save(tmp_path / "photo.jpg")
    for share, scale in ((1.0, 4), (0.2, 1)):
        photo = Image.open(tmp_path / "photo.jpg")
        resize = transforms.RandomResizedCrop(100, scale=(share, share), ratio=(1, 1))
        assert ReducedResize(resize)(photo).size == (100, 100)
        assert photo.size == (400 // scale,) * 2


@pytest.mark.parametrize("how", ["torchvision", "reduced"])
def test_a_broken_file_is_pillows_error(how, tmp_path):
    dataset = ImageFolder(folder_of(tmp_path, (400, 300), {"a.jpg": "RGB"}), transform=USUAL)
    path = tmp_path / "class" / "a.jpg"
    path.write_bytes(path.read_bytes()[:2000])
    for broken in (dataset, decoded(dataset, how)):
        with pytest.raises(OSError, match="truncated"):
            broken[0]


def opened(path):
    return Image.open(path)


class Own(Dataset):
    """A dataset of one's own with torchvision's loader."""

    def __init__(self, path, transform, loader=default_loader):
        self.path, self.transform, self.loader = path, transform, loader

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.transform(self.loader(self.path / "class" / "a.jpg"))


def test_a_dataset_of_ones_own_may_have_torchvisions_loader(tmp_path):
    loader = DataLoader(Own(folder_of(tmp_path), USUAL), batch_size=3)
    for how in ("torchvision", "reduced"):
        assert next(iter(applied("image_decode", how, loader))).shape == (3, 3, 16, 16)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: Own(path, USUAL, loader=opened), "does not read image files"),
        (lambda path: TensorDataset(torch.rand(3)), "does not read image files"),
        (ImageFolder, "first transform"),
        (lambda path: ImageFolder(path, transform=lambda image: image), "first transform"),
        (lambda path: ImageFolder(path, transform=transforms.ColorJitter(0.4)), "first transform"),
        (lambda path: ImageFolder(path, transform=transforms.Resize(9, max_size=10)), "first transform"),
    ],
)
def test_other_datasets_are_left_alone(make, said, tmp_path):
    loader = DataLoader(make(folder_of(tmp_path)))
    for how in ("torchvision", "reduced"):
        with pytest.raises(RefusedError, match=said):
            applied("image_decode", how, loader)


class Passes:
    """A wrapper that asks the dataset inside for all that it lacks, also while it is copied."""

    def __init__(self, inside):
        self.inside = inside

    def __getattr__(self, name):
        return getattr(self.inside, name)


def test_a_dataset_that_cannot_be_copied_is_read_as_it_is():
    inside = type("Files", (), {"loader": staticmethod(default_loader), "transform": USUAL})()
    assert _decoding_problem(Passes(inside)) == "the dataset cannot be copied: RecursionError"
