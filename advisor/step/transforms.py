"""The last transforms of a dataset, taken out of it so that they can run on whole batches on the device."""

import copy
import sys
import typing
import warnings

import torch

from advisor.step.host_draws import draws_kept, seed_host
from advisor.step.layouts import have_equal_values
from advisor.step.loaders import loader_with

SAMPLES_COMPARED = 2


class DeviceNormalize:
    """Normalize with its numbers kept on the device: the original would copy them there for every batch."""

    def __init__(self, mean: typing.Any, std: typing.Any) -> None:
        self.mean, self.std = ([float(number) for number in numbers] for numbers in (mean, std))
        self.kept: dict[typing.Any, typing.Any] = {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images of any number of leading dimensions, (..., channels, height, width), normalised by channel."""
        wanted = images.device, images.dtype
        if wanted not in self.kept:
            self.kept[wanted] = [
                torch.tensor(numbers, device=images.device, dtype=images.dtype).view(-1, 1, 1)
                for numbers in (self.mean, self.std)
            ]
        mean, std = self.kept[wanted]
        return images.sub(mean).div_(std)


class DeviceTransform:
    """Runs transforms on some parts of a batch: on the batch itself, or at places in a list, a tuple or a dict."""

    def __init__(self, transforms: list[typing.Any], places: list[typing.Any]) -> None:
        self.transforms = transforms
        self.places = places

    def __call__(self, batch: typing.Any) -> typing.Any:
        """The batch with the transformed parts in place of theirs; it is not changed itself."""
        if isinstance(batch, torch.Tensor) or not self.transforms:
            return self.run(batch)
        parts = {place: self.run(part) if place in self.places else part for place, part in parts_of(batch).items()}
        if hasattr(batch, "keys"):
            changed = copy.copy(batch)
            changed.update(parts)
            return changed
        return type(batch)(*parts.values()) if hasattr(batch, "_fields") else type(batch)(parts.values())

    def run(self, part: torch.Tensor) -> torch.Tensor:
        """All transforms on one tensor."""
        for transform in self.transforms:
            part = transform(part)
        return part


def split_transforms(loader: typing.Any) -> tuple[typing.Any, DeviceTransform]:
    """Split a loader's dataset from its last transforms, which are returned in a form for whole batches.

    A few samples are made into a batch in both ways and compared. Raises ValueError, with the reason, where nothing can
    be moved or the two ways differ.
    """
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise ValueError("the dataset is iterable, so its samples cannot be compared in both ways")  # noqa: TRY004
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ValueError("the dataset yields whole batches; put the transforms behind the copy there")
    dataset, moved = without_last_transforms(loader.dataset)
    transforms = [on_batches(transform) for transform in moved]
    expected, have = same_samples(loader, loader.dataset), same_samples(loader, dataset)
    places = changed_places(expected, have)
    transform = DeviceTransform(transforms, places)
    for place, part in parts_of(transform(have)).items():
        if place in places and not alike(part, parts_of(expected)[place]):
            raise ValueError("the last transforms give other results for a batch than for its samples")
    return dataset, transform


def without_transforms(loader: typing.Any) -> tuple[typing.Any, DeviceTransform]:
    """The loader over such a dataset, and the transforms for whole batches. Raises ValueError as above."""
    dataset, transform = split_transforms(loader)
    return loader_with(loader, dataset=dataset), transform


def split_or_whole(loader: typing.Any) -> tuple[typing.Any, DeviceTransform]:
    """The loader without its last transforms, and these; where that is refused the loader as it is, with a warning."""
    try:
        return without_transforms(loader)
    except ValueError as problem:
        warnings.warn(f"the dataset keeps all of its transforms: {problem}", stacklevel=2)
        return loader, DeviceTransform([], [])


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def names_of_moved(loader: typing.Any) -> list[str]:
    """The transforms that :func:`split_transforms` would move. Raises ValueError as it does."""
    split_transforms(loader)
    return [type(transform).__name__ for transform in without_last_transforms(loader.dataset)[1]]


def without_last_transforms(dataset: typing.Any) -> tuple[typing.Any, list[typing.Any]]:
    """A copy of a dataset without its last deterministic transforms, and those; a Subset is looked into."""
    changed = copy.copy(dataset)
    for name in ("transform", "transforms"):
        steps = steps_of(getattr(dataset, name, None))
        first = len(steps)
        while first and is_movable(steps[first - 1]):
            first -= 1
        if first < len(steps):
            set_transform(changed, name, getattr(dataset, name), steps[:first])
            return changed, steps[first:]
    if hasattr(dataset, "dataset"):
        changed.dataset, moved = without_last_transforms(dataset.dataset)
        return changed, moved
    raise ValueError(
        "the dataset's transforms do not end in one that can run on whole batches (ToDtype, ConvertImageDtype or "
        "Normalize of torchvision, in its attribute transform)"
    )


def set_transform(dataset: typing.Any, name: str, present: typing.Any, steps: list[typing.Any]) -> None:
    """Give a dataset these steps as its transform; torchvision's datasets keep it in two places."""
    kept = type(present)(steps) if steps and hasattr(present, "transforms") else (steps or [torch.nn.Identity()])[0]
    setattr(dataset, name, kept)
    both = getattr(dataset, "transforms", None)
    if name == "transform" and getattr(both, "transform", None) is present:
        dataset.transforms = copy.copy(both)
        dataset.transforms.transform = kept


def steps_of(transform: typing.Any) -> list[typing.Any]:
    """The steps of a Compose, or the one transform."""
    inner = getattr(transform, "transforms", None)
    if isinstance(inner, (list, tuple)) and type(transform).__name__ == "Compose":
        return list(inner)
    return [] if transform is None else [transform]


def is_movable(transform: typing.Any) -> bool:
    """Whether a transform is deterministic and does the same to each sample of a batch."""
    if "torchvision" not in sys.modules:
        return False
    from torchvision import transforms
    from torchvision.transforms import v2

    kinds = (v2.ToDtype, v2.ConvertImageDtype, v2.Normalize, transforms.ConvertImageDtype, transforms.Normalize)
    return type(transform) in kinds


def on_batches(transform: typing.Any) -> typing.Any:
    """A transform in the form that runs on batches."""
    return DeviceNormalize(transform.mean, transform.std) if hasattr(transform, "mean") else transform


def same_samples(loader: typing.Any, dataset: typing.Any) -> typing.Any:
    """The first samples of a dataset as a batch, with the same random numbers at each call."""
    with draws_kept():
        seed_host(0)
        return loader.collate_fn([dataset[index] for index in range(min(SAMPLES_COMPARED, len(dataset)))])


def changed_places(expected: typing.Any, have: typing.Any) -> list[typing.Any]:
    """The places at which two batches differ; at each there is a tensor in both."""
    theirs, places = parts_of(have), []
    for place, part in parts_of(expected).items():
        other = theirs.get(place)
        if not isinstance(part, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if part.dtype != other.dtype or not have_equal_values(part, other):
            places.append(place)
    if not places:
        raise ValueError("the dataset's last transforms change no tensor of the batch")
    return places


def parts_of(batch: typing.Any) -> dict[typing.Any, typing.Any]:
    """The parts of a batch by their places: keys, positions, or None for a batch that is one tensor."""
    if isinstance(batch, torch.Tensor):
        return {None: batch}
    if hasattr(batch, "keys"):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118 - what has keys need not be a dict
    if isinstance(batch, (list, tuple)):
        return dict(enumerate(batch))
    raise ValueError(f"a batch is a {type(batch).__name__}, whose parts are not known")
