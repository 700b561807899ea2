"""The modes of PyTorch that a script calls its model in, as values of settings."""

from __future__ import annotations

import torch


def autocast() -> str:
    """The type that autocast casts to at present, ``none`` where it is off."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return "none"


def gradients() -> str:
    """The value of the setting ``infer.grad`` that is in force."""
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    return "grad" if torch.is_grad_enabled() else "no_grad"
