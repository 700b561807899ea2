"""The keys and values that a Hugging Face decoder returns of each call, which nobody reads while it trains."""

import typing

import torch


def decoders(model: torch.nn.Module) -> list[typing.Any]:
    """The parts of a model that attend to the past, and whose configuration says whether they keep keys and values.

    An encoder's configuration may say so too, and it keeps nothing.
    """
    parts = [part for part in model.modules() if hasattr(getattr(part, "config", None), "use_cache")]
    return [part for part in parts if any(map(is_causal, part.modules()))]


def is_causal(module: torch.nn.Module) -> bool:
    """Whether a module is causal attention, by the attributes that Hugging Face gives to such layers."""
    return True in (getattr(module, "is_causal", None), getattr(module, "is_decoder", None))


def keep_no_cache(model: torch.nn.Module) -> None:
    """Have no part of the model keep keys and values, except in ``generate``, which has a setting of its own."""
    for part in decoders(model):
        part.config.use_cache = False
