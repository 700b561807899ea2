"""Convolutions without the bias that a norm after them removes."""

import functools
from typing import Any

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def removable_biases(model: nn.Module, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the convolutions with a bias and the norm after each, except where only the norm is frozen."""
    biased = [(layer, norm) for layer, norm in pairs if isinstance(layer, CONVOLUTIONS) and layer.bias is not None]
    return [(layer, norm) for layer, norm in biased if isinstance(norm, NORMS) and norm.training == model.training]


def remove_conv_biases(model: nn.Module, pairs: list[tuple[Any, Any]]) -> None:
    """Remove biases of convolutions that the batch norm after them subtracts, in place.

    ``pairs`` are a convolution and the norm that alone takes its output. The bias parameters stay in the model and its
    state dict as zeros, unused and not trained. Running means take off their values, also those loaded later.
    """
    biased = removable_biases(model, pairs)
    take_off(biased)
    if biased:  # a model of TorchScript has none, and takes no such hook
        model.register_load_state_dict_post_hook(functools.partial(take_off, biased))


@torch.no_grad()
def take_off(pairs: list[tuple[Any, Any]], *_: Any) -> None:
    """Subtract each bias from the running mean of its norm, and set the bias to zero."""
    for layer, norm in pairs:
        bias = layer._parameters["bias"].requires_grad_(False)
        if norm.running_mean is not None:
            norm.running_mean -= bias
        bias.zero_()
        vars(layer)["bias"] = None  # the forward pass reads this; the state dict has the parameter
