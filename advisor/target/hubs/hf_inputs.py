"""Made-up inputs for Hugging Face models: images, videos, vectors and series, whole or in patches; and those beside.

Beside others stand masks and boxes; some are put another way round, or read inside a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from advisor.step.batch import map_tensors, tensors_of
from advisor.target.guess import noise, typed, whole_numbers
from advisor.target.sizing import output_of

if TYPE_CHECKING:
    from advisor.target.hubs.hf_batches import ModelInputs

USUAL_SIDE = 224
_FRAMES_SEEN = 16  # of a video
_USUAL_PATCH = 16
# Inputs that say how many patches each image has: in time, in a column and in a row.
_GRIDS = ("grid_thw", "image_grid_thw")


def images(about: ModelInputs, size: int) -> dict[str, Any]:
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


def grid_of(about: ModelInputs) -> str:
    """The name of the input that says how many patches each image has; empty where the model takes none."""
    return next((name for name in _GRIDS if name in about.accepted), "")


def videos(about: ModelInputs, size: int) -> dict[str, Any]:
    """Videos of as many frames as the configuration says."""
    side = about.get("image_size", "crop_size", default=USUAL_SIDE)
    frames = about.get("num_frames", "frames_per_clip", default=_FRAMES_SEEN)
    shape = about.shape or (frames, about.get("num_channels", "in_chans", default=3), side, side)
    return {"pixel_values_videos": noise(size, *shape)}


def flattened(about: ModelInputs, size: int) -> dict[str, Any]:
    """The patches of an image, each with its row and its column, which begin with one, in front."""
    side, columns = about.get("patch_size", default=_USUAL_PATCH), max(1, math.isqrt(about.length))
    values = about.get("patch_embed_hidden_size", default=about.get("num_channels", default=3) * side * side)
    shape = about.shape or (about.length, values + 2)
    patches = noise(size, *shape)
    places = torch.arange(shape[0])
    patches[..., 0], patches[..., 1] = places // columns + 1, places % columns + 1
    return {"flattened_patches": patches}


def _patches(about: ModelInputs, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """An image cut into patches, for a model that takes images of any shape so."""
    side = about.get("patch_size", default=_USUAL_PATCH)
    rows, columns = shape[-2] // side, shape[-1] // side
    return {
        "pixel_values": noise(size, rows * columns, shape[0] * side * side),
        "pixel_attention_mask": torch.ones(size, rows * columns, dtype=torch.long),
        "spatial_shapes": torch.tensor([[rows, columns]] * size),
    }


def patches_of_a_grid(about: ModelInputs, size: int, name: str, grid: str) -> dict[str, Any]:
    """The patches of all images in one row, and how many there are of each; several of them are merged later."""
    patch = about.get("patch_size", default=_USUAL_PATCH)
    merged = about.get("spatial_merge_size", "merge_size", default=1)
    channels, height, width = about.shape if about.shape and len(about.shape) == 3 else (None, USUAL_SIDE, USUAL_SIDE)
    channels = channels or about.get("in_channels", "num_channels", default=3)
    rows, columns = (max(1, side // (patch * merged)) * merged for side in (height, width))
    values = channels * about.get("temporal_patch_size", "patch_temporal", default=1) * patch * patch
    sizes = {"merge_sizes": torch.full((size,), merged)} if "merge_sizes" in about.accepted else {}
    return {name: noise(size * rows * columns, values), grid: torch.tensor([[1, rows, columns]] * size), **sizes}


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


_POSITIONS = 16  # vectors of one sample
_USUAL_WIDTH = 80  # of a vector: the usual number of bins of a spectrogram
SOUND_LENGTH = 16000  # samples: one second at the usual rate

#: The names of such inputs, each with the configuration's names of its vectors' width.
STATES = {
    "hidden_states": ("hidden_size", "d_model"),
    "inputs_embeds": ("hidden_size", "d_model"),
    "latents": ("hidden_size",),
    "spectrogram": ("model_in_dim", "num_mel_bins"),
}
_USUAL_STEPS = 512  # of a model that takes a series of any length
_USUAL_HORIZON = 24


def states(name: str, about: ModelInputs, size: int) -> dict[str, Any]:
    """A vector for each position, or the patches of a grid."""
    if grid := grid_of(about):
        return patches_of_a_grid(about, size, name, grid)
    return {name: noise(size, *(about.shape or (_POSITIONS, about.get(*STATES[name], default=_USUAL_WIDTH))))}


def other_states(name: str, about: ModelInputs) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Makers of what a first part takes under the same name: vectors of another width, an image or a sound."""
    width = about.get("input_dim", "in_channels", "num_channels", default=_USUAL_WIDTH)
    own = about.get(*STATES[name], default=_USUAL_WIDTH)
    for shape in ((_POSITIONS, width), (own, _POSITIONS), (3, USUAL_SIDE, USUAL_SIDE), (1, SOUND_LENGTH)):
        yield partial(_of_shape, name, shape)


def _of_shape(name: str, shape: tuple[int, ...], size: int) -> dict[str, Any]:
    return {name: noise(size, *shape)}


def past(config: Any, size: int, shape: tuple[int, ...] | None) -> dict[str, torch.Tensor]:
    """All that a model may be given of the past. ``shape``: of one series, as ``--input`` gives it."""
    own = shape or (_steps(config), *_channels(config))
    return {
        "past_values": noise(size, *own),
        "past_observed_mask": torch.ones(size, *own),
        "past_values_padding": torch.zeros(size, own[0], dtype=torch.long),
        "past_time_features": noise(size, own[0], _count(config, "num_time_features")),
        "static_real_features": noise(size, _count(config, "num_static_real_features")),
        "static_categorical_features": _categories(config, size),
        "freq": torch.zeros(size, 1, dtype=torch.long),
    }


def future(config: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values that a model is trained to forecast, in as many channels as it forecasts."""
    size, channels = batch["past_values"].shape[0], batch["past_values"].shape[2:]
    horizon = _count(config, "prediction_length") or _count(config, "horizon_length") or _USUAL_HORIZON
    return {
        "future_values": noise(size, horizon, *channels),
        "future_observed_mask": torch.ones(size, horizon, *channels),
        "future_time_features": noise(size, horizon, _count(config, "num_time_features")),
    }


def _steps(config: Any) -> int:
    """The steps of the past: the context, and before it the longest lag that the model looks back from its start."""
    lags: list[int] = getattr(config, "lags_sequence", None) or [0]
    return min(_count(config, "context_length") or _USUAL_STEPS, _USUAL_STEPS) + max(lags)


def _channels(config: Any) -> tuple[int, ...]:
    """The dimension of several series side by side; none for a model of a single one."""
    if channels := _count(config, "num_input_channels"):
        return (channels,)
    several = _count(config, "input_size")
    return (several,) if several > 1 else ()


def _categories(config: Any, size: int) -> torch.Tensor:
    kinds = getattr(config, "cardinality", None) or [1]
    return whole_numbers(max(1, min(kinds)), size, _count(config, "num_static_categorical_features"))


def _count(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


_BINS = 128  # of a spectrogram, where the usual 80 do not fit
_TOKENS = 1000  # that each vocabulary has
_REGIONS, _DETECTED, _BOX = 36, 2048, 4  # of an image, with the usual detector; numbers of a vector and of a box

Make = Callable[[int], dict[str, Any]]
#: Inputs that are read inside a text, each with the model's method that makes vectors of it, and its token's name.
READ_INSIDE = {
    "pixel_values": ("get_image_features", "image_token"),
    "input_features": ("get_audio_features", "audio_token"),
    "input_values": ("get_audio_features", "audio_token"),
}
# Inputs that say of each token whether it is one of the text.
_KINDS = ("token_type_ids", "mm_token_type_ids")


def together_of(makes: list[Make]) -> Make:
    """The inputs of several makers in one batch."""
    return lambda size: {name: value for make in makes for name, value in make(size).items()}


def bins_first(make: Make) -> Make:
    """Spectrograms with their bins before their frames, and the other way round."""
    return lambda size: {n: value.mT if n == "input_features" else value for n, value in make(size).items()}


def changed(make: Make, how: Callable[[dict[str, Any]], dict[str, Any]]) -> Make:
    """Batches that are changed after they were made."""
    return lambda size: how(make(size))


def of_bins(batch: dict[str, Any]) -> dict[str, Any]:
    """Spectrograms with the other usual number of bins, for a model whose configuration names none."""
    size, frames = batch["input_features"].shape[:2]
    return {**batch, "input_features": noise(size, frames, _BINS)}


def in_rows(codebooks: int, batch: dict[str, Any]) -> dict[str, Any]:
    """The tokens of each codebook of a sound in a row of their own."""
    return {**batch, "input_ids": batch["input_ids"].repeat_interleave(codebooks, 0)}


def _mask(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """A mask that hides nothing: for each position of a text, sample of a sound, frame, or pixel."""
    if name == "pixel_mask":
        images = batch.get("pixel_values")
        return {} if images is None else {name: torch.ones(len(images), *images.shape[-2:], dtype=torch.long)}
    if (features := batch.get("input_features")) is not None:
        length = max(features.shape[1:])  # a spectrogram has more frames than bins
    else:
        length = next((batch[n].shape[-1] for n in ("input_ids", "input_values") if n in batch), 0)
    size = next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))
    return {name: torch.ones(size, length, dtype=torch.long)} if length else {}


def _boxes_of_words(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The place of each word on a page: its left, upper, right and lower edge, as shares of the page."""
    if "input_ids" not in batch:
        return {}
    return {name: torch.tensor([0.25, 0.25, 0.75, 0.5]).expand(*batch["input_ids"].shape, 4).clone()}


def _mask_of_images(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """A mask by which each token of a text sees all images beside it, of which there may be several."""
    images = batch.get("pixel_values")
    if images is None or images.dim() != 5 or "input_ids" not in batch:
        return {}
    return {name: torch.ones(*batch["input_ids"].shape, images.shape[1], dtype=torch.long)}


def _instructions(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The text again, in the tokens of another part, of which any has this many."""
    return {name: batch["input_ids"].remainder(_TOKENS)} if "input_ids" in batch else {}


def _languages(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The first language for each text."""
    return {name: torch.zeros(len(batch["input_ids"]), dtype=torch.long)} if "input_ids" in batch else {}


def _regions(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The regions that a detector found in an image: their vectors, or their boxes."""
    width = _BOX if name == "visual_pos" else _DETECTED
    return {name: noise(len(batch["input_ids"]), _REGIONS, width)} if "input_ids" in batch else {}


# Inputs that come with others.
BESIDE: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "attention_mask": _mask,
    "input_features_mask": _mask,
    "padding_mask": _mask,
    "pixel_mask": _mask,
    "bbox": _boxes_of_words,
    "lang_ids": _languages,
    "image_attention_mask": _mask_of_images,
    "qformer_input_ids": _instructions,
    "visual_feats": _regions,
    "visual_pos": _regions,
}


def with_a_channel(make: Make) -> Make:
    """The inputs; a sound among them gets a dimension for its only channel."""
    return lambda size: {n: value[:, None] if n == "input_values" else value for n, value in make(size).items()}


@dataclass(frozen=True)
class Places:
    """The places of one input in the texts of a model: ``token`` stands there."""

    model: Any
    about: ModelInputs
    method: str
    token: int

    def filled(self, texts: Make, others: Make) -> Make | None:
        """Texts that begin with the places of other inputs, and those inputs; None where their number is unknown."""
        count = self._count(others(1))
        if not count:
            return None

        def make(size: int) -> dict[str, Any]:
            batch = {**texts(size), **others(size)}
            ids = torch.cat([torch.full((size, count), self.token), batch["input_ids"]], 1)
            batch["input_ids"] = ids
            if "attention_mask" in batch:
                batch["attention_mask"] = torch.ones_like(ids)
            return {**batch, **{name: (ids == self.token).long() for name in _KINDS if name in self.about.accepted}}

        return make

    def _count(self, inputs: dict[str, Any]) -> int:
        """The number of vectors that the model makes of one sample of its other inputs; 0 where they do not fit it."""
        if (grid := inputs.get(grid_of(self.about))) is not None:
            merged: int = self.about.get("spatial_merge_size", "merge_size", default=1)
            return int(grid[0].prod().item() // merged**2)
        of_its_type = map_tensors(lambda tensor: typed(tensor, self.model), inputs)
        vectors = output_of(_Features(self.model, self.method), of_its_type)
        return sum(vector.numel() // vector.shape[-1] for vector in tensors_of(vectors))


class _Features(nn.Module):
    """The part of a model that makes vectors of an image or a sound."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, **inputs: Any) -> Any:
        found = getattr(self.model, self.method)(**inputs)
        return getattr(found, "pooler_output", found)


def places_of(model: Any, about: ModelInputs, name: str) -> Places | None:
    """The places of an input in the texts of a model; None where it does not read it inside a text."""
    method, named = READ_INSIDE[name]
    key = next((key for key in (f"{named}_id", f"{named}_index") if hasattr(model.config, key)), "")
    if not hasattr(model, method) or not key:
        return None
    if getattr(model.config, key) not in range(about.vocabulary):  # a default may be of another vocabulary, or None
        setattr(model.config, key, about.vocabulary - 1)
    return Places(model, about, method, getattr(model.config, key))
