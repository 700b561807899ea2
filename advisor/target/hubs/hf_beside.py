"""Inputs that Hugging Face models take beside others (masks, boxes), put another way round, or read inside a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.portable.nested import map_tensors, tensors_of
from advisor.target.guess import noise, typed
from advisor.target.hubs.hf_images import About, grid_of
from advisor.target.sizing import output_of

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
    about: About
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


def places_of(model: Any, about: About, name: str) -> Places | None:
    """The places of an input in the texts of a model; None where it does not read it inside a text."""
    method, named = READ_INSIDE[name]
    key = next((key for key in (f"{named}_id", f"{named}_index") if hasattr(model.config, key)), "")
    if not hasattr(model, method) or not key:
        return None
    if getattr(model.config, key) not in range(about.vocabulary):  # a default may be of another vocabulary, or None
        setattr(model.config, key, about.vocabulary - 1)
    return Places(model, about, method, getattr(model.config, key))
