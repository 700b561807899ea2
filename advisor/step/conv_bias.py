"""Biases of convolutions that a norm takes off again."""

import functools
import typing

import torch

from advisor.step.norm_pairs import CONVOLUTIONS, Norm, View, function_name, layer_before, norms_after, views_of
from advisor.step.stand_in import StandInForward


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
        read = {name: vars(module).get(name, parameter) for name, parameter in module._parameters.items()}
        own = [(name, parameter) for name, parameter in read.items() if parameter is not None]
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
    """The biases in the input of each norm, by its running mean; None among them for anything else."""
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
    """Remove the biases of convolutions that a norm cancels, in place. Raises CannotTraceError.

    The biases are subtracted from the running means, so that evaluation gives the same. The parameters stay, as zeros
    that nothing reads and that get no gradient: a copy of the model has the same parameters, whenever it was made. A
    saved state dict describes the same model, and a loaded one may have other biases. In training, a bias comes back
    when the loop asks for its gradient or freezes the norm after it.
    """
    for bias, means in removable_biases(model, trained=trained, data=data):
        for mean in means:
            mean.sub_(bias.detach().to(mean.dtype))
        bias.requires_grad_(False).detach().zero_()
        kept = {id(mean) for mean in means}
        norms = [(m, name) for m in model.modules() for name, buffer in m._buffers.items() if id(buffer) in kept]
        for module in list(model.modules()):
            for name in [name for name, parameter in module._parameters.items() if parameter is bias]:
                vars(module)[name] = None
                absent = AbsentBias(module, name, norms)
                keep_absent(model, absent)
                if trained and "forward" not in vars(module):
                    vars(module)["forward"] = absent


class AbsentBias(StandInForward):
    """A bias that its module reads as None, and the running means that it is in.

    In training it stands as the ``forward`` in the module's own attributes, and looks whether the bias is needed again.
    """

    runs_class_forward = True

    def __init__(self, module: torch.nn.Module, name: str, norms: list[tuple[torch.nn.Module, str]]) -> None:
        self.module = module
        self.name = name
        self.norms = norms

    @property
    def parameter(self) -> torch.Tensor | None:
        """The parameter that is not read; None once somebody has put another in its place."""
        return self.module._parameters.get(self.name) if vars(self.module).get(self.name, self) is None else None

    @property
    def is_needed(self) -> bool:
        """Whether the bias would learn: it was unfrozen, or its convolution trains before a norm in evaluation mode.

        Loops train so to freeze their norms; a validation that records gradients cannot be told from that.
        """
        if self.parameter is None or not torch.is_grad_enabled():
            return False
        others = (one for name, one in self.module._parameters.items() if name != self.name and one is not None)
        frozen = not all(norm.training for norm, _ in self.norms)
        return self.parameter.requires_grad or (frozen and any(one.requires_grad for one in others))

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The module's own forward."""
        if self.is_needed:
            bring_back(self)
        return type(self.module).forward(self.module, *args, **kwargs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def bring_back(bias: AbsentBias) -> None:
    """Let a module read its bias again, which is trained from now on as in a plain loop."""
    assert bias.parameter is not None, "it is there while it is absent"
    bias.parameter.requires_grad_(True)
    del vars(bias.module)[bias.name]
    if vars(bias.module).get("forward") is bias:
        del vars(bias.module)["forward"]


def keep_absent(model: torch.nn.Module, bias: AbsentBias) -> None:
    """Let a bias be zero in what is saved, and have the running means take off one that is loaded."""
    bias.module.register_state_dict_post_hook(functools.partial(save_zeros, bias))
    parts = {bias.module, *(norm for norm, _ in bias.norms)}
    for ancestor in model.modules():
        if parts <= set(ancestor.modules()):
            ancestor.register_load_state_dict_post_hook(functools.partial(absorb_loaded, bias))


def save_zeros(bias: AbsentBias, module: torch.nn.Module, saved: typing.Any, prefix: str, _: typing.Any) -> None:
    """A hook that saves zeros, whatever a loop over all parameters has put into this one."""
    if bias.parameter is not None:
        saved[prefix + bias.name] = torch.zeros_like(bias.parameter)


def absorb_loaded(bias: AbsentBias, *_: typing.Any) -> None:
    """A hook that takes a loaded bias off the running means, which were loaded with it."""
    parameter = bias.parameter
    if parameter is None:
        return
    for norm, name in bias.norms:
        mean = norm._buffers[name]
        if mean is not None:
            mean.sub_(parameter.detach().to(mean))
    parameter.detach().zero_()
