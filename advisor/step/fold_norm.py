"""Batch norms of evaluation, folded into the convolution or linear layer before them."""

import collections
import typing

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
TRANSPOSED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


def foldable_norms(model: torch.nn.Module) -> list[tuple[typing.Any, typing.Any]]:
    """Return layers with the batch norm that alone takes their results, as torch.fx sees the forward pass.

    Where it cannot follow the whole model, as with one that branches on its input, it follows each part by itself.
    """
    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception:  # whatever a forward pass does with stand-ins for tensors
        return [pair for part in model.children() for pair in foldable_norms(part)]
    calls = graph.find_nodes(op="call_module")
    times = collections.Counter(call.target for call in calls)
    once = [call for call in calls if times[call.target] == 1]
    names = [(str(call.target), str(user.target)) for call in once for user in call.users if user in once]
    alone = {str(call.target) for call in once if len(call.users) == 1}
    pairs = [(model.get_submodule(layer), model.get_submodule(norm)) for layer, norm in names if layer in alone]
    return [(layer, norm) for layer, norm in pairs if fits(layer, norm)]


def fits(layer: typing.Any, norm: typing.Any) -> bool:
    """Whether PyTorch can fold a norm into a layer, whose weight is a parameter of its own."""
    simple = type(layer) in (torch.nn.Linear, *CONVOLUTIONS) or (type(layer) in TRANSPOSED and layer.groups == 1)
    has_statistics = isinstance(norm, NORMS) and norm.running_mean is not None
    return simple and has_statistics and isinstance(layer.weight, torch.nn.Parameter)


def fold_batch_norms(model: torch.nn.Module) -> None:
    """Fold every batch norm that can be into the layer before it, in place; it becomes an Identity."""
    folded = set()
    for layer, norm in foldable_norms(model):
        statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
        if isinstance(layer, torch.nn.Linear):
            layer.weight, layer.bias = fuse_linear_bn_weights(layer.weight, layer.bias, *statistics)
        else:
            transposed = isinstance(layer, TRANSPOSED)
            layer.weight, layer.bias = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics, transposed)
        folded.add(norm)
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if part in folded:
                setattr(parent, name, torch.nn.Identity().train(part.training))
