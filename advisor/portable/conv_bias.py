"""Biases of convolutions that a norm takes off again."""

import functools
import typing

import torch

from advisor.portable.norm_pairs import CONVOLUTIONS, Norm, View, function_name, layer_before, norms_after, views_of


def removable_biases(
    model: torch.nn.Module, *, trained: bool, data: typing.Any = None, limit_s: float = 5.0
) -> list[tuple[torch.nn.Parameter, list[torch.Tensor]]]:
    """Each bias of a convolution that goes to norms only, with the running means that take it in.

    To be trained without it, every norm has to subtract the mean of the batch: a frozen one does not, and the bias
    then learns. Raises CannotTraceError.
    """
    biases = {id(bias): bias for bias in convolution_biases(model)}
    if not biases or not has_norms(model):
        return []
    views = views_of(model, (True, False) if trained else (False,), data, limit_s)
    means: dict[int, dict[int, torch.Tensor]] = {}
    refused: set[int] = set()
    for view in views:
        refused |= used_elsewhere(view)
        for node, layer in view.layers.items():
            norms = norms_after(node, view) if is_convolution(node, view) else []
            if not norms or not all(takes_off(norm, layer.bias, trains=trained and view.training) for norm in norms):
                refused.add(id(layer.bias))
            found = {id(norm.running_mean): norm.running_mean for norm in norms if norm.running_mean is not None}
            means.setdefault(id(layer.bias), {}).update(found)
    sources = sources_of_means(views)
    return [
        (biases[key], list(found.values()))
        for key, found in means.items()
        if key in biases and key not in refused and all(sources[mean] == {key} for mean in found)
    ]


def convolution_biases(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that may be biases of convolutions: beside each is a weight of three dimensions or more."""
    found = []
    for module in model.modules():
        own = [(name, parameter) for name, parameter in module._parameters.items() if parameter is not None]
        if any(parameter.dim() >= 3 for _, parameter in own):
            found += [parameter for name, parameter in own if "bias" in name and parameter.dim() == 1]
    return found


def has_norms(model: torch.nn.Module) -> bool:
    """Whether a model can have a norm that subtracts means: as a module, or by its buffers."""
    norms = (torch.nn.modules.batchnorm._NormBase,)
    return any(isinstance(module, norms) or "running_mean" in module._buffers for module in model.modules())


def is_convolution(node: torch.fx.Node, view: View) -> bool:
    """Whether a layer is a convolution rather than a linear layer, whose channels a norm may take for positions."""
    if node.op == "call_module":
        return isinstance(view.layers[node].module, torch.nn.modules.conv._ConvNd)
    return function_name(node) in CONVOLUTIONS


def takes_off(norm: Norm, bias: torch.Tensor | None, *, trains: bool) -> bool:
    """Whether a norm takes a bias off again: its running mean can take it in, and in training it uses the batch's."""
    mean = norm.running_mean
    fits = mean is None or (bias is not None and mean.shape == bias.shape)
    return fits and (norm.by_batch or not trains)


def used_elsewhere(view: View) -> set[int]:
    """Parameters and buffers with another use in a trace than as a layer's bias or a norm's running mean."""
    found = set()
    for node, tensor in view.tensors.items():
        for user in node.users:
            as_bias = user in view.layers and view.layers[user].bias is tensor
            as_mean = user in view.norms and view.norms[user].running_mean is tensor
            if not as_bias and not as_mean:
                found.add(id(tensor))
    return found


def sources_of_means(views: list[View]) -> dict[int, set[int | None]]:
    """For each running mean, the biases in what its norm is given; None among them for anything else."""
    sources: dict[int, set[int | None]] = {}
    for view in views:
        elsewhere = used_elsewhere(view)
        for norm in view.norms.values():
            layer = layer_before(norm, view)
            bias = id(view.layers[layer].bias) if layer is not None else None
            own = id(norm.running_mean)
            sources.setdefault(own, set()).add(None if own in elsewhere else bias)
    return sources


def remove_conv_biases(model: torch.nn.Module, trained: bool, data: typing.Any = None) -> None:
    """Take the biases of convolutions that norms cancel out of a model, in place. Raises CannotTraceError.

    Each running mean takes its bias off, so that evaluation stays the same. What is saved has biases of zero, which is
    the same model; what is loaded may have others. An optimizer keeps the parameters, which get no gradients any more.
    """
    for bias, means in removable_biases(model, trained=trained, data=data):
        for mean in means:
            mean.sub_(bias.detach().to(mean.dtype))
        kept = {id(mean) for mean in means}
        norms = [(m, name) for m in model.modules() for name, buffer in m._buffers.items() if id(buffer) in kept]
        for module in list(model.modules()):
            for name in [name for name, parameter in module._parameters.items() if parameter is bias]:
                module._parameters[name] = None
                keep_name(model, module, AbsentBias(name, tuple(bias.shape), norms))


class AbsentBias:
    """The name under which a bias is saved and loaded that a module no longer has, and the running means it is in."""

    def __init__(self, name: str, shape: tuple[int, ...], norms: list[tuple[torch.nn.Module, str]]) -> None:
        self.name = name
        self.shape = shape
        self.norms = norms
        self.loaded: torch.Tensor | None = None


def keep_name(model: torch.nn.Module, module: torch.nn.Module, bias: AbsentBias) -> None:
    """Let a module save and load a bias that it no longer has."""
    module.register_state_dict_post_hook(functools.partial(save_zeros, bias))
    module.register_load_state_dict_pre_hook(functools.partial(take_loaded, bias))
    parts = {module, *(norm for norm, _ in bias.norms)}
    for ancestor in model.modules():
        if parts <= set(ancestor.modules()):
            ancestor.register_load_state_dict_post_hook(functools.partial(absorb_loaded, bias))


def save_zeros(bias: AbsentBias, module: torch.nn.Module, saved: typing.Any, prefix: str, _: typing.Any) -> None:
    """A hook that adds the bias to what is saved."""
    saved[prefix + bias.name] = next(module.parameters()).detach().new_zeros(bias.shape)


def take_loaded(bias: AbsentBias, module: torch.nn.Module, loaded: typing.Any, prefix: str, *_: typing.Any) -> None:
    """A hook that takes the bias out of what is loaded."""
    bias.loaded = loaded.pop(prefix + bias.name, None)


def absorb_loaded(bias: AbsentBias, *_: typing.Any) -> None:
    """A hook that takes a loaded bias off the running means, which were loaded with it."""
    given, bias.loaded = bias.loaded, None
    for norm, name in bias.norms:
        mean = norm._buffers[name]
        if mean is not None and given is not None:
            mean.sub_(given.to(mean))
