"""Batch norms of evaluation, folded into the convolution or linear layer before them."""

import typing

import torch

from advisor.step.norm_pairs import View, layer_before, norms_after, views_of


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

    The model can be evaluated afterwards, but no longer be trained as before. A checkpoint of the model as it was is
    folded as it is loaded. Raises CannotTraceError.
    """
    names = list(model.named_modules(remove_duplicate=False))
    layer: typing.Any
    norm: typing.Any
    for layer, norm in foldable_pairs(model, data):
        weight, bias = folded(layer, norm.eps, tensors_in(layer), tensors_in(norm))
        trained = layer.weight.requires_grad
        layer.weight = torch.nn.Parameter(torch.empty_like(layer.weight).copy_(weight), trained)
        layer.bias = torch.nn.Parameter(bias.to(layer.weight.dtype), trained)
        for parent in list(model.modules()):
            for name in [name for name, child in parent._modules.items() if child is norm]:
                parent._modules[name] = torch.nn.Identity().train(norm.training)
        of_layer, of_norm = ([f"{name}." for name, module in names if module is one] for one in (layer, norm))
        model.register_load_state_dict_pre_hook(Loading(layer, norm.eps, of_layer, of_norm))


class Loading:
    """A hook that folds a norm into its layer among what is loaded; ``layers`` and ``norms`` are the names of each."""

    def __init__(self, layer: torch.nn.Module, eps: float, layers: list[str], norms: list[str]) -> None:
        self.layer, self.eps, self.layers, self.norms = layer, eps, layers, norms

    def __call__(self, _: torch.nn.Module, state: dict[str, typing.Any], prefix: str, *others: typing.Any) -> None:
        """Replace the layer's tensors, and take out the norm's. What was saved of a folded model stays."""
        own, norm = ({name: prefix + part + name for name in NAMES} for part in (self.layers[0], self.norms[0]))
        if norm["running_var"] not in state or own["weight"] not in state:
            return
        found = [{name: state.get(key) for name, key in keys.items()} for keys in (own, norm)]
        made = zip(("weight", "bias"), folded(self.layer, self.eps, *found), strict=True)
        dtype = state[own["weight"]].dtype
        state.update({prefix + part + name: one.to(dtype) for name, one in made for part in self.layers})
        for key in [key for key in state for part in self.norms if key.startswith(prefix + part)]:
            del state[key]


NAMES = ("weight", "bias", "running_mean", "running_var")


def tensors_in(module: torch.nn.Module) -> dict[str, typing.Any]:
    """The tensors of a layer or a norm by their names; None for one that it has not."""
    return {name: getattr(module, name, None) for name in NAMES}


def folded(
    layer: torch.nn.Module, eps: float, own: dict[str, typing.Any], norm: dict[str, typing.Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight and the bias of a layer that does what it and the norm after it do, in double precision.

    Of a transposed convolution the channels are the second dimension of the weights, group by group.
    """
    own, norm = ({k: None if v is None else v.detach().double() for k, v in part.items()} for part in (own, norm))
    scale = (norm["running_var"] + eps).rsqrt() * (1.0 if norm["weight"] is None else norm["weight"])
    shift = 0.0 if norm["bias"] is None else norm["bias"]
    bias = ((0.0 if own["bias"] is None else own["bias"]) - norm["running_mean"]) * scale + shift
    weight = own["weight"]
    if isinstance(layer, torch.nn.modules.conv._ConvTransposeNd):
        parts = weight.unflatten(0, (layer.groups, -1))
        return (parts * scale.view(layer.groups, 1, -1, *[1] * (parts.dim() - 3))).flatten(0, 1), bias
    return weight * scale.view(-1, *[1] * (weight.dim() - 1)), bias
