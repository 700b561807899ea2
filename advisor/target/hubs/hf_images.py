"""Made-up images and videos for Hugging Face models: whole, in patches, and as the patches of a grid."""

import math
from typing import Any, Protocol

import torch

from advisor.target.guess import noise

USUAL_SIDE = 224
_FRAMES_SEEN = 16  # of a video
_USUAL_PATCH = 16
# Inputs that say how many patches each image has: in time, in a column and in a row.
_GRIDS = ("grid_thw", "image_grid_thw")


class About(Protocol):
    """The facts by which inputs are made: a configuration's values, a signature, and what ``--input`` gives."""

    @property
    def length(self) -> int:
        """The number of positions of a text."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""

    @property
    def side(self) -> int | None:
        """The side of images, where it is another than their own: pixels."""

    @property
    def accepted(self) -> Any:
        """The parameters of the forward pass, by name."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """One sample's shape as ``--input`` gives it."""

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes that the configuration or a part of it has."""

    def requires(self, name: str) -> bool:
        """Whether the forward pass has a parameter of this name without a default."""


def images(about: About, size: int) -> dict[str, Any]:
    """Images of the configuration's size; in patches, or several as frames, where the model takes them so."""
    if grid := grid_of(about):
        return patches_of_a_grid(about, size, "pixel_values", grid)
    shape = about.shape if about.shape and len(about.shape) > 1 else None
    if shape is None:
        side = about.side or about.get("image_size", default=USUAL_SIDE)
        whole = about.get("patch_size", default=1) * windows if (windows := about.get("num_windows")) else 1
        height, width = (side[0], side[-1]) if isinstance(side, list | tuple) else (side, side)
        height, width = height // whole * whole, width // whole * whole  # windows have whole patches
        shape = (about.get("num_channels", default=3), height, width)
        frames = about.get("num_frames")
        shape = (frames, *shape) if frames else shape
    if "spatial_shapes" in about.accepted:
        return _patches(about, size, shape)
    fits = {"interpolate_pos_encoding": True} if about.side and "interpolate_pos_encoding" in about.accepted else {}
    return {"pixel_values": noise(size, *shape), **fits}


def grid_of(about: About) -> str:
    """The name of the input that says how many patches each image has; empty where the model takes none."""
    return next((name for name in _GRIDS if name in about.accepted), "")


def videos(about: About, size: int) -> dict[str, Any]:
    """Videos of as many frames as the configuration says."""
    side = about.get("image_size", "crop_size", default=USUAL_SIDE)
    frames = about.get("num_frames", "frames_per_clip", default=_FRAMES_SEEN)
    shape = about.shape or (frames, about.get("num_channels", "in_chans", default=3), side, side)
    return {"pixel_values_videos": noise(size, *shape)}


def flattened(about: About, size: int) -> dict[str, Any]:
    """The patches of an image, each with its row and its column, which begin with one, in front."""
    side, columns = about.get("patch_size", default=_USUAL_PATCH), max(1, math.isqrt(about.length))
    values = about.get("patch_embed_hidden_size", default=about.get("num_channels", default=3) * side * side)
    shape = about.shape or (about.length, values + 2)
    patches = noise(size, *shape)
    places = torch.arange(shape[0])
    patches[..., 0], patches[..., 1] = places // columns + 1, places % columns + 1
    return {"flattened_patches": patches}


def _patches(about: About, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """An image cut into patches, for a model that takes images of any shape so."""
    side = about.get("patch_size", default=_USUAL_PATCH)
    rows, columns = shape[-2] // side, shape[-1] // side
    return {
        "pixel_values": noise(size, rows * columns, shape[0] * side * side),
        "pixel_attention_mask": torch.ones(size, rows * columns, dtype=torch.long),
        "spatial_shapes": torch.tensor([[rows, columns]] * size),
    }


def patches_of_a_grid(about: About, size: int, name: str, grid: str) -> dict[str, Any]:
    """The patches of all images in one row, and how many there are of each; several of them are merged later."""
    patch = about.get("patch_size", default=_USUAL_PATCH)
    merged = about.get("spatial_merge_size", "merge_size", default=1)
    channels, height, width = about.shape if about.shape and len(about.shape) == 3 else (None, USUAL_SIDE, USUAL_SIDE)
    channels = channels or about.get("in_channels", "num_channels", default=3)
    rows, columns = (max(1, side // (patch * merged)) * merged for side in (height, width))
    values = channels * about.get("temporal_patch_size", "patch_temporal", default=1) * patch * patch
    sizes = {"merge_sizes": torch.full((size,), merged)} if "merge_sizes" in about.accepted else {}
    return {
        name: noise(size * rows * columns, values),
        grid: torch.tensor([[1, rows, columns]] * size),
        **sizes,
    }


def of_any_frames(batch: dict[str, Any]) -> dict[str, Any]:
    """The frames of videos as images of their own."""
    frames = batch["pixel_values"]
    return {**batch, "pixel_values": frames.flatten(0, 1)} if frames.dim() == 5 else batch


def one_each(batch: dict[str, Any]) -> dict[str, Any]:
    """Images in lists of one, for models that take several with each text."""
    one = batch["pixel_values"]
    return {**batch, "pixel_values": one[:, None]} if one.dim() == 4 else batch


def in_pairs(batch: dict[str, Any]) -> dict[str, Any]:
    """Images in pairs, each with another one, for models that compare two."""
    one = batch["pixel_values"]
    return {**batch, "pixel_values": torch.stack([one, one.flip(-1)], 1)} if one.dim() == 4 else batch
