"""Texts with a place for each vector of an image or a sound, for models that read these inside a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.portable.nested import map_tensors, tensors_of
from advisor.target.guess import typed
from advisor.target.hubs.hf_beside import Make
from advisor.target.hubs.hf_images import About, grid_of
from advisor.target.sizing import output_of

#: Inputs that are read inside a text, each with the model's method that makes vectors of it, and its token's name.
READ_INSIDE = {
    "pixel_values": ("get_image_features", "image_token"),
    "input_features": ("get_audio_features", "audio_token"),
    "input_values": ("get_audio_features", "audio_token"),
}
# Inputs that say of each token whether it is one of the text.
_KINDS = ("token_type_ids", "mm_token_type_ids")


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
