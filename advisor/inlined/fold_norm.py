"""Fold batch norms in evaluation mode into the convolutions or linear layers before them."""

from typing import Any

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
TRANSPOSED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


def is_foldable(layer: Any, norm: Any) -> bool:
    """Whether PyTorch can fold a norm into a layer. The layer's weight must be a parameter."""
    simple = type(layer) in (torch.nn.Linear, *CONVOLUTIONS) or (type(layer) in TRANSPOSED and layer.groups == 1)
    has_statistics = isinstance(norm, NORMS) and norm.running_mean is not None
    return simple and has_statistics and isinstance(layer.weight, torch.nn.Parameter)


def fold_batch_norms(model: torch.nn.Module, pairs: list[tuple[Any, Any]]) -> None:
    """Fold batch norms into the layers before them where possible, in place. A folded norm becomes an Identity.

    ``pairs`` are layers, each with a norm that is the only user of its output.
    """
    folded = {norm: layer for layer, norm in pairs if is_foldable(layer, norm)}
    for norm, layer in folded.items():
        statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
        if isinstance(layer, torch.nn.Linear):
            layer.weight, layer.bias = fuse_linear_bn_weights(layer.weight, layer.bias, *statistics)
        else:
            transposed = isinstance(layer, TRANSPOSED)
            layer.weight, layer.bias = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics, transposed)
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if part in folded:
                setattr(parent, name, torch.nn.Identity().train(part.training))
