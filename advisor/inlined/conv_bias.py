"""Remove biases of convolutions if the norm after the convolution subtracts the bias anyway."""

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
    """Return the convolutions that have a bias, each with the norm after it; but not if only the norm is frozen."""
    biased = [(layer, norm) for layer, norm in pairs if isinstance(layer, CONVOLUTIONS) and layer.bias is not None]
    return [(layer, norm) for layer, norm in biased if isinstance(norm, NORMS) and norm.training == model.training]


def remove_conv_biases(model: nn.Module, pairs: list[tuple[Any, Any]]) -> None:
    """Remove, in place, the biases of convolutions if the norm after them subtracts the biases anyway.

    ``pairs`` are convolutions, each with a norm that is the only user of its output. The biases stay in the state dict
    as zeros that are not trained. Their old values (and those loaded later) are subtracted from the running means.
    """
    biased = removable_biases(model, pairs)
    take_off(biased)
    if biased:  # TorchScript models have no biases here, and take no such hook
        model.register_load_state_dict_post_hook(functools.partial(take_off, biased))


@torch.no_grad()
def take_off(pairs: list[tuple[Any, Any]], *_: Any) -> None:
    """Subtract each bias from the running mean of its norm, and set the bias to zero."""
    for layer, norm in pairs:
        bias = layer._parameters["bias"].requires_grad_(False)
        if norm.running_mean is not None:
            norm.running_mean -= bias
        bias.zero_()
        vars(layer)["bias"] = None  # hides the parameter from the forward pass, not from the state dict
