"""The key-value cache that a Hugging Face decoder returns from each call, which training never reads."""

import typing

import torch


def decoders(model: torch.nn.Module) -> list[typing.Any]:
    """The parts of a model whose configuration says whether they cache keys and values."""
    return [part for part in model.modules() if hasattr(getattr(part, "config", None), "use_cache")]


def keep_no_cache(model: torch.nn.Module) -> None:
    """Switch the key-value cache off in all parts of the model. ``generate`` has its own setting and keeps it."""
    for part in decoders(model):
        part.config.use_cache = False
