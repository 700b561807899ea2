"""Batch norms of evaluation, folded into the convolution or linear layer before them."""

import typing

import torch

from advisor.portable.norm_pairs import View, layer_before, norms_after, views_of


def foldable_pairs(
    model: torch.nn.Module, data: typing.Any = None, limit_s: float = 5.0
) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    """Layers of PyTorch's own with the batch norm that alone takes all their results. Raises CannotTraceError."""
    if not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return []
    norms_of: dict[torch.nn.Module | None, set[torch.nn.Module | None]] = {}
    layers_of: dict[torch.nn.Module | None, set[torch.nn.Module | None]] = {}
    refused: set[int] = set()
    for view in views_of(model, (False,), data, limit_s):
        refused |= read_apart(view)
        for node, layer in view.layers.items():
            norms = {norm.module for norm in norms_after(node, view)}
            norms_of.setdefault(layer.module, set()).update(norms or {None})
        for norm in view.norms.values():
            before = layer_before(norm, view)
            module = view.layers[before].module if before is not None and not norm.by_batch else None
            layers_of.setdefault(norm.module, set()).add(module)
    return [
        (layer, norm)
        for layer, norms in norms_of.items()
        for norm in norms
        if layer is not None and norm is not None
        if len(norms) == 1 and layers_of[norm] == {layer} and fits(layer, norm)
        if not refused & {id(tensor) for part in (layer, norm) for tensor in part.state_dict(keep_vars=True).values()}
    ]


def read_apart(view: View) -> set[int]:
    """Parameters and buffers that a module reads which does not own them."""
    found = set()
    for node, tensor in view.tensors.items():
        for user in node.users:
            layer, norm = view.layers.get(user), view.norms.get(user)
            module = layer.module if layer is not None else norm.module if norm is not None else None
            if module is None or all(own is not tensor for own in module.state_dict(keep_vars=True).values()):
                found.add(id(tensor))
    return found


def fits(layer: torch.nn.Module, norm: torch.nn.Module) -> bool:
    """Whether a norm has a statistic for each channel of a layer, whose weights are its own plain parameters."""
    weight, mean = layer._parameters.get("weight"), norm._buffers.get("running_mean")
    if weight is None or mean is None or not isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
        return False
    channels = getattr(layer, "out_channels", None) or getattr(layer, "out_features", None)
    return mean.shape == (channels,) and "bias" in layer._parameters


def fold_batch_norms(model: torch.nn.Module, data: typing.Any = None) -> None:
    """Fold every batch norm that can be into the layer before it, in place; it becomes an Identity.

    The model can be evaluated afterwards, but no longer be trained as before. Raises CannotTraceError.
    """
    for layer, norm in foldable_pairs(model, data):
        fold(layer, norm)
        for parent in list(model.modules()):
            for name in [name for name, child in parent._modules.items() if child is norm]:
                parent._modules[name] = torch.nn.Identity().train(norm.training)


def fold(layer: typing.Any, norm: typing.Any) -> None:
    """Multiply the norm into the weights of the layer before it, in double precision.

    Of a transposed convolution the channels are the second dimension of the weights, group by group.
    """
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    scale = (variance + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.detach().double())
    shift = 0.0 if norm.bias is None else norm.bias.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    old = layer.weight
    weight = old.detach().double()
    if isinstance(layer, torch.nn.modules.conv._ConvTransposeNd):
        groups, parts = layer.groups, weight.unflatten(0, (layer.groups, -1))
        weight = (parts * scale.view(groups, 1, -1, *[1] * (parts.dim() - 3))).flatten(0, 1)
    else:
        weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
    layer.weight = torch.nn.Parameter(torch.empty_like(old).copy_(weight), old.requires_grad)
    layer.bias = torch.nn.Parameter(((bias - mean) * scale + shift).to(old.dtype), old.requires_grad)
