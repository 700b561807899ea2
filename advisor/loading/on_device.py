"""A dataset in memory, kept on the device; its batches are gathered and transformed there as a whole.

A TensorDataset, and datasets of torchvision that hold their images as bytes (MNIST, CIFAR, SVHN, USPS and their kin)
with transforms that do the same to each image, or what they draw for it: as torchvision draws, one by one.
"""

import typing

import torch


class TensorsOnDevice(torch.utils.data.TensorDataset):
    """A TensorDataset whose batch is read at once; PyTorch's loaders ask for it by ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """The batch of these samples, as ``default_collate`` would make it of them."""
        chosen = torch.tensor(indices).to(self.tensors[0].device)
        return [tensor[chosen] for tensor in self.tensors]


class ImagesOnDevice(torch.utils.data.Dataset[typing.Any]):
    """The images and labels of a dataset as tensors of a device; PyTorch's loaders ask for a batch by __getitems__.

    Other attributes are those of the dataset itself. Its images are copied once: later changes to them are not seen.
    """

    def __init__(self, dataset: typing.Any, device: typing.Any) -> None:
        self._dataset = dataset
        images = torch.as_tensor(dataset.data)
        if images.dim() == 3:  # grey, without a dimension of channels
            images = images[:, None]
        elif images.shape[-1] == 3:  # channels last, as in pictures
            images = images.permute(0, 3, 1, 2)
        self._images = images.to(device).contiguous()
        labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
        self._labels = torch.as_tensor(labels, dtype=torch.int64).to(device)
        self._steps = [(batched_form(one) or _Step)(one) for one in single_steps(dataset)]
        self._sizes: list[tuple[int, int]] = []  # of the images before each step that draws
        one = self._images[:1]
        for step in self._steps:
            self._sizes += [step.size_before(one)] if step.draws else []
            one = step(one, torch.zeros(1, 2, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> typing.Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """The batch of these samples: images (samples, channels, height, width) and labels (samples,)."""
        drawing = [*zip((step for step in self._steps if step.draws), self._sizes, strict=True)]
        drawn = torch.tensor([[step.draw(*size) for step, size in drawing] for _ in indices], dtype=torch.int64)
        device = self._images.device
        chosen, of_steps = torch.tensor(indices).to(device), iter(drawn.to(device).unbind(1))
        images = self._images[chosen]
        for step in self._steps:
            images = step(images, next(of_steps) if step.draws else drawn)
        return [images, self._labels[chosen]]

    def __getattr__(self, name: str) -> typing.Any:
        if name == "_dataset":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)


def kept_on_device(dataset: typing.Any, device: typing.Any = None) -> typing.Any:
    """The dataset, or the one inside any number of ``Subset``, on a device: the GPU where there is one.

    On the host where it would take more than a tenth of the GPU's memory.
    """
    if type(dataset) is torch.utils.data.Subset:
        return torch.utils.data.Subset(kept_on_device(dataset.dataset, device), dataset.indices)
    tensors = dataset.tensors if hasattr(dataset, "tensors") else [dataset.data]
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        memory_bytes = torch.cuda.get_device_properties(device).total_memory
        device = torch.device("cpu") if sum(one.nbytes for one in tensors) > 0.1 * memory_bytes else device
    if hasattr(dataset, "tensors"):
        return TensorsOnDevice(*(tensor.to(device) for tensor in tensors))
    return ImagesOnDevice(dataset, device)


def single_steps(dataset: typing.Any) -> list[typing.Any]:
    """The transforms of a dataset's images, one by one."""
    left, found = [dataset.transform], []
    while left:
        one = left.pop(0)
        if type(one).__name__ == "Compose":
            left = [*one.transforms, *left]
        elif one is not None:
            found.append(one)
    return found


def as_it_is(batch: typing.Any) -> typing.Any:
    """The ``collate_fn`` for batches that were read at once."""
    return batch


class _Step:
    """A transform that does the same to each image, which it does to a batch as well."""

    draws = False

    def __init__(self, transform: typing.Any) -> None:
        self.transform = transform

    def size_before(self, images: torch.Tensor) -> tuple[int, int]:
        """Height and width of the images that it draws for."""
        return images.shape[-2], images.shape[-1]

    def draw(self, height: int, width: int) -> tuple[int, int]:
        """What is drawn for one image of this size."""
        return 0, 0

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """A batch (samples, channels, height, width) transformed, with what was drawn for each (samples, 2)."""
        changed: torch.Tensor = self.transform(images)
        return changed


class _Unchanged(_Step):
    """PIL images become tensors, which these are."""

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return images


class _ToTensor(_Step):
    """Bytes become numbers from 0 to 1."""

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return images.to(torch.get_default_dtype()).div_(255)  # a copy already


class _Normalize(_Step):
    """The same in place: the batch is a copy of the images already."""

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        from torchvision.transforms.functional import normalize

        normalized: torch.Tensor = normalize(images, self.transform.mean, self.transform.std, inplace=True)
        return normalized


class _Flip(_Step):
    """A mirror image where it was drawn, left to right."""

    draws = True
    dimension = -1

    def draw(self, height: int, width: int) -> tuple[int, int]:
        return int(torch.rand(1) < self.transform.p), 0

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return torch.where(drawn[:, 0, None, None, None] > 0, images.flip(self.dimension), images)


class _FlipUpsideDown(_Flip):
    dimension = -2


class _Crop(_Step):
    """A part of each image, at the place that was drawn for it."""

    draws = True

    def _padded(self, images: torch.Tensor) -> torch.Tensor:
        from torchvision.transforms.functional import pad

        one = self.transform
        padded: torch.Tensor = images if one.padding is None else pad(images, one.padding, one.fill, one.padding_mode)
        return padded

    def size_before(self, images: torch.Tensor) -> tuple[int, int]:
        return super().size_before(self._padded(images))

    def draw(self, height: int, width: int) -> tuple[int, int]:
        more = height - self.transform.size[0], width - self.transform.size[1]
        newer = type(self.transform).__module__.startswith("torchvision.transforms.v2")  # draws where there is a choice
        row, column = (int(torch.randint(0, n + 1, (1,))) if n or (any(more) and not newer) else 0 for n in more)
        return row, column

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        height, width = self.transform.size
        parts = self._padded(images).unfold(2, height, 1).unfold(3, width, 1)
        return parts[torch.arange(len(images), device=images.device), :, drawn[:, 0], drawn[:, 1]]


def batched_form(transform: typing.Any) -> type[_Step] | None:
    """How a batch goes through a transform of torchvision's, by its name; None where no batch does."""
    forms: dict[str, type[_Step]] = {
        "ToTensor": _ToTensor,
        "ToImage": _Unchanged,
        "PILToTensor": _Unchanged,
        "RandomHorizontalFlip": _Flip,
        "RandomVerticalFlip": _FlipUpsideDown,
        "RandomCrop": _Crop,
        "Normalize": _Normalize,
        **dict.fromkeys(("ToDtype", "ConvertImageDtype", "CenterCrop", "Pad"), _Step),
    }
    return forms.get(type(transform).__name__)
