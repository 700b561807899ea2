"""Inputs that Hugging Face models take beside others, such as masks and boxes, and inputs put another way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.target.guess import noise

_BINS = 128  # of a spectrogram, where the usual 80 do not fit

Make = Callable[[int], dict[str, Any]]


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


def _languages(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The first language for each text."""
    return {name: torch.zeros(len(batch["input_ids"]), dtype=torch.long)} if "input_ids" in batch else {}


# Inputs that come with others.
BESIDE: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "attention_mask": _mask,
    "input_features_mask": _mask,
    "padding_mask": _mask,
    "pixel_mask": _mask,
    "bbox": _boxes_of_words,
    "lang_ids": _languages,
}


def with_a_channel(make: Make) -> Make:
    """Inputs with a dimension for the one channel of a sound."""
    return lambda size: {name: value[:, None] for name, value in make(size).items()}
