"""The last transforms of a dataset, taken out of it so that they run on whole batches on the device."""

import copy
from typing import Any

import torch

from advisor.step.batch import map_tensors, tensors_of


class OnDevice:
    """Transforms that run on the images of a batch: its first tensor of four dimensions or more."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = [Normalize(one.mean, one.std) if hasattr(one, "mean") else one for one in transforms]

    def __call__(self, batch: Any) -> Any:
        """The batch with its images transformed; it is not changed itself."""
        images = next((tensor for tensor in tensors_of(batch) if tensor.dim() > 3), None)
        if images is None:
            return batch
        transformed = images
        for transform in self.transforms:
            transformed = transform(transformed)
        return map_tensors(lambda one: transformed if one is images else one, batch)


class Normalize:
    """Normalisation by channel whose numbers stay on the device; torchvision's copies them there for every batch."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.numbers = torch.tensor([list(map(float, mean)), list(map(float, std))])[..., None, None]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images (..., channels, height, width) less the mean, by the standard deviation."""
        self.numbers = self.numbers.to(images)
        return images.sub(self.numbers[0]).div_(self.numbers[1])


def without_last_transforms(dataset: Any) -> tuple[Any, list[Any]]:
    """A copy of a dataset without its last transforms that can run on batches, and those transforms.

    They are taken from the end of its attribute ``transform``, one transform or a ``Compose``, also of the dataset
    inside a ``Subset``. The list is empty if there are none.
    """
    if not hasattr(dataset, "transform"):
        if not hasattr(dataset, "dataset"):
            return dataset, []
        changed = copy.copy(dataset)
        changed.dataset, moved = without_last_transforms(dataset.dataset)
        return changed, moved
    several = type(dataset.transform).__name__ == "Compose"
    steps = list(dataset.transform.transforms) if several else [dataset.transform]
    first = len(steps)
    while first and is_movable(steps[first - 1]):
        first -= 1
    changed = copy.copy(dataset)
    if first < len(steps):
        changed.transform = type(dataset.transform)(steps[:first]) if first else torch.nn.Identity()
        both = getattr(dataset, "transforms", None)  # in which torchvision's datasets keep it a second time
        if getattr(both, "transform", None) is dataset.transform:
            changed.transforms = copy.copy(both)
            changed.transforms.transform = changed.transform
    return changed, steps[first:]


def is_movable(transform: Any) -> bool:
    """Whether a torchvision transform of this name treats every image the same, without random numbers."""
    of_torchvision = type(transform).__module__.startswith("torchvision.transforms")
    return of_torchvision and type(transform).__name__ in ("ToDtype", "ConvertImageDtype", "Normalize")
