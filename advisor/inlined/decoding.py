"""Decode image files by torchvision into tensors, or JPEG files at a reduced size that is enough for the resize.

The dataset must read files like torchvision's ImageFolder, and its first transform must be a resize.
"""

import contextlib
import copy
import inspect
import math
from typing import Any

import torch

# torchvision's transforms that are as fast on tensors as on Pillow images, and draw the same random numbers.
_ON_TENSORS = ("Resize", "RandomResizedCrop", "CenterCrop", "RandomHorizontalFlip", "RandomVerticalFlip")
_RESIZES = _ON_TENSORS[:2]


def decoded(dataset: Any, how: str) -> Any:
    """A copy of a dataset (or of a ``Subset`` of one) that decodes by ``torchvision`` or at ``reduced`` size.

    Raises ValueError with the reason if the dataset does not read and resize image files like torchvision's datasets.
    """
    if type(dataset).__name__ == "Subset":  # PyTorch's
        copied = copy.copy(dataset)
        copied.dataset = decoded(dataset.dataset, how)
        return copied
    if getattr(getattr(dataset, "loader", None), "__module__", "") != "torchvision.datasets.folder":
        raise ValueError("the dataset does not read image files as torchvision's ImageFolder does")
    from PIL import Image
    from torchvision.transforms import Compose

    first, *rest = _single_steps(getattr(dataset, "transform", None)) or [None]
    if _name_of(first) not in _RESIZES or getattr(first, "max_size", None):
        raise ValueError("the dataset's first transform is not torchvision's Resize or RandomResizedCrop")
    reduces, copied = how == "reduced", copy.copy(dataset)
    copied.loader = Image.open if reduces else read_image
    copied.transform = Compose([ReducedResize(first), *rest] if reduces else _of_tensors([first, *rest]))
    return copied


def read_image(path: Any) -> Any:
    """Decode an image file to bytes (3, height, width) by torchvision, or else by Pillow."""
    from torchvision.datasets.folder import pil_loader
    from torchvision.transforms.functional import pil_to_tensor

    with contextlib.suppress(ImportError, RuntimeError):  # no decoder in newer versions, or an unknown or broken file
        from torchvision.io import ImageReadMode, decode_image

        image: torch.Tensor = decode_image(str(path), ImageReadMode.RGB)
        if image.dtype is torch.uint8 and image.dim() == 3:
            return image
    return pil_to_tensor(pil_loader(path))


class ReducedResize:
    """Resizes an image file that is opened but not decoded, and decodes it at the smallest sufficient size.

    ``resize`` is torchvision's Resize or RandomResizedCrop; a random crop is drawn before the file is decoded.
    Only JPEG files can be decoded smaller: at a half, a quarter or an eighth of their size.
    """

    def __init__(self, resize: Any) -> None:
        self.resize = resize

    def __call__(self, image: Any) -> Any:
        """Return the resized Pillow image of an image that is not decoded yet."""
        from PIL import Image
        from torchvision.transforms.v2.functional import resized_crop

        top, left, rows, columns = self._part(image)
        height, *width = [self.resize.size] if isinstance(self.resize.size, int) else self.resize.size
        shorter = min(rows, columns)
        wanted = [height, *width] if width else [int(height * rows / shorter), int(height * columns / shorter)]
        full, larger = image.width, min(rows / wanted[0], columns / wanted[1])  # the file's scale over the wanted
        least = math.ceil(image.width / larger), math.ceil(image.height / larger)
        drafted = image.draft("RGB", least) if larger > 1 else None
        pixels = image if image.mode == "RGB" else image.convert("RGB")
        scale = drafted[1][2] / full if drafted else 1.0
        if scale == 1.0:
            return resized_crop(pixels, top, left, rows, columns, wanted, self.resize.interpolation)
        box = (left * scale, top * scale, (left + columns) * scale, (top + rows) * scale)
        how = getattr(self.resize.interpolation, "value", self.resize.interpolation)  # newer versions have a text
        return pixels.resize(wanted[::-1], Image.Resampling[how.upper()], box)

    def _part(self, image: Any) -> Any:
        """The part of an image to resize: its first row, first column, number of rows and number of columns."""
        from torchvision.transforms import RandomResizedCrop

        if _name_of(self.resize) == "Resize":
            return 0, 0, image.height, image.width
        return RandomResizedCrop.get_params(image, list(self.resize.scale), list(self.resize.ratio))


def _of_tensors(steps: list[Any]) -> list[Any]:
    """The same transforms for tensors. Later transforms without a form for tensors still get Pillow images."""
    from torchvision.transforms import v2

    changed: list[Any] = []
    while steps and _name_of(steps[0]) in _ON_TENSORS:
        step, newer = steps[0], getattr(v2, _name_of(steps[0]))
        given = {name: getattr(step, name) for name in inspect.signature(newer).parameters}
        if "antialias" in given:
            given["antialias"] = True  # like Pillow
        changed.append(newer(**given))
        steps = steps[1:]
    # The next transform converts a Pillow image to a tensor, or needs a Pillow image.
    to_float = v2.ToDtype(torch.get_default_dtype(), scale=True)
    instead = {"ToTensor": [to_float], "PILToTensor": [], "ToImage": steps[:1]}.get(_name_of(steps[0]) if steps else "")
    return [*changed, v2.ToPILImage(), *steps] if instead is None else [*changed, *instead, *steps[1:]]


def _single_steps(transform: Any) -> list[Any]:
    """The transforms inside a transform, one by one."""
    if _name_of(transform) == "Compose":
        return [step for one in transform.transforms for step in _single_steps(one)]
    return [] if transform is None else [transform]


def _name_of(transform: Any) -> str:
    """The class name of a torchvision transform; empty for other objects."""
    kind = type(transform)
    return kind.__name__ if kind.__module__.startswith("torchvision.transforms.") else ""
