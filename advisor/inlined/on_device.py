"""Keep a dataset on the device, and gather and transform whole batches there.

It works for TensorDataset, and for torchvision's datasets with images as bytes in memory (MNIST, CIFAR, SVHN, USPS and
the like) whose transforms can be applied to batches. Random transforms draw for each image, in torchvision's order.
"""

from typing import Any

import torch
from torch.utils.data import default_collate


class Batch(list[torch.Tensor]):
    """A batch that was read as a whole."""


class TensorsOnDevice(torch.utils.data.TensorDataset):
    """A TensorDataset that reads a batch as a whole. PyTorch's loaders call its ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> Batch:
        """The batch of these samples, equal to the result of ``default_collate``."""
        chosen = torch.tensor(indices).to(self.tensors[0].device, non_blocking=True)
        return Batch(tensor[chosen] for tensor in self.tensors)


class ImagesOnDevice(torch.utils.data.Dataset[Any]):
    """The images and labels of a dataset as tensors on a device. PyTorch's loaders call its ``__getitems__``.

    Other attributes are the dataset's own. The images are copied once, so later changes to them have no effect.
    """

    def __init__(self, dataset: Any, device: Any) -> None:
        self._dataset = dataset
        images = torch.as_tensor(dataset.data)
        if images.dim() == 3:  # grey images without a channel dimension
            images = images[:, None]
        elif images.shape[-1] == 3:  # channels last
            images = images.permute(0, 3, 1, 2)
        self._images = images.to(device).contiguous()
        self._labels = torch.as_tensor(getattr(dataset, labels_of(dataset))).to(device, torch.int64)
        self._steps = [_FORMS[type(one).__name__](one) for one in single_steps(dataset.transform)]
        one = self._images[:1]
        for step in self._steps:
            step.size = tuple(step.padded(one).shape[-2:])
            one = step(one.clone(), torch.zeros(1, 2, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        """The batch of these samples: images (samples, channels, height, width) and labels (samples,)."""
        drawn = torch.tensor([[step.draw() for step in self._steps] for _ in indices], dtype=torch.int64)
        device = self._images.device
        chosen = torch.tensor(indices).to(device, non_blocking=True)
        images = self._images[chosen]
        for step, its_own in zip(self._steps, drawn.to(device, non_blocking=True).unbind(1), strict=True):
            images = step(images, its_own)
        return Batch([images, self._labels[chosen]])

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self._dataset, name)


def kept_on_device(dataset: Any, device: Any) -> Any:
    """A copy of a dataset on a device (or the host, above 10 % of GPU memory); unchanged if it cannot be kept."""
    if type(dataset) is torch.utils.data.Subset:
        return torch.utils.data.Subset(kept_on_device(dataset.dataset, device), dataset.indices)
    if why_not_kept(dataset):
        return dataset
    of_tensors = type(dataset) is torch.utils.data.TensorDataset
    tensors = dataset.tensors if of_tensors else [dataset.data]
    if torch.device(device).type == "cuda":
        memory_bytes = torch.cuda.get_device_properties(device).total_memory
        device = "cpu" if sum(one.nbytes for one in tensors) > 0.1 * memory_bytes else device
    if of_tensors:
        return TensorsOnDevice(*(tensor.to(device) for tensor in tensors))
    return ImagesOnDevice(dataset, device)


def why_not_kept(dataset: Any) -> str:
    """The reason why a dataset's batches cannot be read as a whole from memory; empty if they can."""
    while type(dataset) is torch.utils.data.Subset:
        dataset = dataset.dataset
    if type(dataset) is torch.utils.data.TensorDataset:
        return ""
    if not str(getattr(type(dataset).__getitem__, "__module__", "")).startswith("torchvision.datasets."):
        return "the dataset is neither a TensorDataset nor a torchvision dataset with images in memory"
    if getattr(getattr(dataset, "data", None), "itemsize", 0) != 1 or not labels_of(dataset):
        return "the dataset does not hold its images in memory as bytes"
    if getattr(dataset, "target_transform", None) is not None:
        return "the dataset changes its labels by a target_transform"
    try:
        labels = torch.as_tensor(getattr(dataset, labels_of(dataset)))
    except (RuntimeError, TypeError, ValueError):  # texts, or lists of different lengths
        labels = torch.empty(0)
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype is torch.bool:
        return "the dataset's labels are not one integer for each image"
    others = [type(one).__name__ for one in single_steps(dataset.transform) if not _has_form(one)]
    return f"the dataset has a transform without a form for batches: {others[0]}" if others else ""


def _has_form(transform: Any) -> bool:
    """Whether a transform can be applied to a batch; not if it has types by part, or a colour as its fill."""
    plain = not isinstance(getattr(transform, "dtype", None), dict) and isinstance(getattr(transform, "fill", 0), int)
    kind = type(transform)  # a user's class may have the same name, so check the module
    return plain and kind.__module__.startswith("torchvision.transforms.") and kind.__name__ in _FORMS


def labels_of(dataset: Any) -> str:
    """The name of the attribute with a dataset's labels; empty if there is none."""
    return next((name for name in ("targets", "labels") if getattr(dataset, name, None) is not None), "")


def single_steps(transform: Any) -> list[Any]:
    """The transforms inside a transform, one by one."""
    if type(transform).__name__ == "Compose" and type(transform).__module__.startswith("torchvision.transforms."):
        return [step for one in transform.transforms for step in single_steps(one)]
    return [] if transform is None else [transform]


def collated(batch: Any) -> Any:
    """The ``collate_fn`` for batches that were read as a whole, and for samples of an unchanged dataset."""
    return [*batch] if isinstance(batch, Batch) else default_collate(batch)


class _Step:
    """A transform without random numbers, which works on a batch like on an image."""

    size: tuple[int, ...]  # height and width of the (padded) input images

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def padded(self, images: torch.Tensor) -> Any:
        """The input images, padded if the transform pads them."""
        return images

    def draw(self) -> tuple[int, int]:
        """The two random numbers for one image; 0 for a number that the transform does not need."""
        return 0, 0

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> Any:
        """Transform a batch (samples, channels, height, width) with the drawn numbers (samples, 2)."""
        return self.transform(images)


class _ToTensor(_Step):
    """Converts bytes to numbers from 0 to 1. Other transforms to tensors do nothing: the images are tensors already."""

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        is_scaled = type(self.transform).__name__ == "ToTensor"
        return images.to(torch.get_default_dtype()).div_(255) if is_scaled else images  # `to` made a copy


class NormalizeStep(_Step):
    """Normalises each channel. Mean and deviation stay on the device; torchvision copies them for each batch."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform)
        both = [[*map(float, numbers)] for numbers in (transform.mean, transform.std)]
        self.numbers = torch.tensor(both, dtype=torch.float64)[..., None, None]

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor | None = None) -> torch.Tensor:
        """Subtract the mean from images (..., channels, height, width), and divide them by the standard deviation."""
        self.numbers = self.numbers.to(images)
        return images.sub(self.numbers[0]).div_(self.numbers[1])


class _Flip(_Step):
    """Mirrors the images whose drawn number is 1."""

    def draw(self) -> tuple[int, int]:
        return int(torch.rand(1) < self.transform.p), 0

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        dimension = -1 if type(self.transform).__name__ == "RandomHorizontalFlip" else -2
        return torch.where(drawn[:, 0, None, None, None] > 0, images.flip(dimension), images)


class _Crop(_Step):
    """Crops each image at its drawn place."""

    def padded(self, images: torch.Tensor) -> Any:
        from torchvision.transforms.functional import pad

        one, padding = self.transform, self.transform.padding
        if type(one).__module__.startswith("torchvision.transforms.v2") and isinstance(padding, list):
            left, right, top, bottom = padding  # pad() takes another order
            padding = [left, top, right, bottom]
        return images if padding is None else pad(images, padding, one.fill, one.padding_mode)

    def draw(self) -> tuple[int, int]:
        more = [size - wanted for size, wanted in zip(self.size, self.transform.size, strict=True)]
        newer = type(self.transform).__module__.startswith("torchvision.transforms.v2")  # draws only if it has a choice
        row, column = (int(torch.randint(0, n + 1, (1,))) if n or (any(more) and not newer) else 0 for n in more)
        return row, column

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> Any:
        height, width = self.transform.size
        parts = self.padded(images).unfold(2, height, 1).unfold(3, width, 1)
        return parts[torch.arange(len(images), device=images.device), :, drawn[:, 0], drawn[:, 1]]


# The class name of a torchvision transform -> the class that does the same to a whole batch.
_FORMS = {
    **dict.fromkeys(("ToTensor", "ToImage", "PILToTensor"), _ToTensor),
    **dict.fromkeys(("RandomHorizontalFlip", "RandomVerticalFlip"), _Flip),
    **dict.fromkeys(("ToDtype", "ConvertImageDtype", "CenterCrop", "Pad"), _Step),
    "RandomCrop": _Crop,
    "Normalize": NormalizeStep,
}
