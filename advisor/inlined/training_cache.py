"""Switch off the key-value cache that a Hugging Face decoder returns from each call. Training never reads it."""

from typing import Any

import torch


def decoders(model: torch.nn.Module) -> list[Any]:
    """The parts of a model that have causal attention, and a configuration with ``use_cache``.

    Hugging Face's layers have an attribute for causal attention. An encoder may have ``use_cache``, but has no cache.
    """
    parts = [part for part in model.modules() if hasattr(getattr(part, "config", None), "use_cache")]
    names = "is_causal", "is_decoder"
    of_past = {one for one in model.modules() if any(getattr(one, name, None) is True for name in names)}
    return [part for part in parts if not of_past.isdisjoint(part.modules())]


def keep_no_cache(model: torch.nn.Module) -> None:
    """Switch the key-value cache off in all parts of the model. ``generate`` has its own setting and keeps it."""
    for part in decoders(model):
        part.config.use_cache = False
