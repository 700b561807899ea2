"""Optimizers of another class over the same parameter groups. Their state begins anew."""

import importlib
import inspect
import typing

import torch

# Classes that keep two moments of every gradient: what Adam is known for.
ADAM_KIN = (torch.optim.Adam, torch.optim.AdamW)
EIGHT_BIT_PACKAGES = ("bitsandbytes.optim", "torchao.optim")


def with_small_state(optimizer: torch.optim.Optimizer, kind: str) -> torch.optim.Optimizer:
    """Adam or AdamW with less state: ``adafactor`` keeps rows and columns of a moment, ``8-bit`` both in 8 bits.

    Raises ValueError for another optimizer, and ImportError when no package with 8-bit optimizers is installed.
    """
    if type(optimizer) not in ADAM_KIN:
        raise ValueError(f"{type(optimizer).__name__} is neither Adam nor AdamW, whose state could be made smaller")
    if kind == "adafactor":
        return over_same_groups(optimizer, torch.optim.Adafactor, ("lr", "weight_decay", "maximize"))
    decoupled = type(optimizer) is torch.optim.AdamW
    cls = first_found(EIGHT_BIT_PACKAGES, "AdamW8bit" if decoupled else "Adam8bit")
    return over_same_groups(optimizer, cls, ("lr", "betas", "eps", "weight_decay"))


def with_layer_rates(optimizer: torch.optim.Optimizer, kind: str) -> torch.optim.Optimizer:
    """``lars`` in place of SGD, ``lamb`` in place of Adam: a rate for each tensor. Raises ImportError without timm."""
    if kind == "lars":
        return over_same_groups(
            optimizer, first_found(("timm.optim",), "Lars"), ("lr", "momentum", "weight_decay", "nesterov")
        )
    return over_same_groups(optimizer, first_found(("timm.optim",), "Lamb"), ("lr", "betas", "eps", "weight_decay"))


def over_same_groups(
    optimizer: torch.optim.Optimizer, cls: typing.Any, options: tuple[str, ...]
) -> torch.optim.Optimizer:
    """An optimizer of a class over the groups of another, with these options of theirs where the class takes them."""
    taken = [name for name in options if name in inspect.signature(cls).parameters]
    groups = [
        {"params": group["params"], **{name: group[name] for name in taken if name in group}}
        for group in optimizer.param_groups
    ]
    made: torch.optim.Optimizer = cls(groups, lr=optimizer.param_groups[0]["lr"])
    return made


def first_found(modules: tuple[str, ...], name: str) -> typing.Any:
    """A class by its name, out of the first of these modules that is installed."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise ImportError(f"{name} needs one of these packages: {', '.join(module.split('.')[0] for module in modules)}")
