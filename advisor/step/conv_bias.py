"""Convolutions without the bias that a norm behind them subtracts again."""

import collections
import functools
import typing

import torch

CONVOLUTIONS = (
    *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
)
NORMS = (
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm),
    *(torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d),
)


def layers_in_a_row(model: torch.nn.Module) -> list[tuple[typing.Any, typing.Any]]:
    """Return pairs of layers where the second alone takes what the first gives, as torch.fx sees the forward pass.

    Where it cannot follow the whole model, as with one that branches on its input, it follows each part by itself.
    """
    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception:  # whatever a forward pass does with stand-ins for tensors
        return [pair for part in model.children() for pair in layers_in_a_row(part)]
    calls = graph.find_nodes(op="call_module")
    times = collections.Counter(call.target for call in calls)
    pairs = []
    for call in calls:
        users = list(call.users)
        if len(users) == 1 and users[0].op == "call_module" and times[call.target] == times[users[0].target] == 1:
            pairs.append((model.get_submodule(str(call.target)), model.get_submodule(str(users[0].target))))
    return pairs


def removable_biases(model: torch.nn.Module) -> list[tuple[typing.Any, typing.Any]]:
    """Return the convolutions with a bias and the norm behind each; not those whose norm alone is frozen."""
    return [
        (layer, norm)
        for layer, norm in layers_in_a_row(model)
        if isinstance(layer, CONVOLUTIONS) and layer.bias is not None
        if isinstance(norm, NORMS) and norm.training == model.training
    ]


def remove_conv_biases(model: torch.nn.Module) -> None:
    """Let convolutions compute without a bias that the norm behind them subtracts, in place.

    The parameters stay in the model and its state dict, as zeros that nothing reads and that are not trained. What they
    were is taken off the running means, and so is a bias that is loaded later.
    """
    pairs = removable_biases(model)
    if not pairs:
        return
    for layer, _ in pairs:
        layer.bias.requires_grad_(False)
    take_off(pairs)
    for layer, _ in pairs:
        vars(layer)["bias"] = None  # the forward pass reads this; the state dict has the parameter
    model.register_load_state_dict_post_hook(functools.partial(take_off, pairs))


@torch.no_grad()
def take_off(pairs: list[tuple[typing.Any, typing.Any]], *_: typing.Any) -> None:
    """Take each bias off its norm's running mean, and set it to zero."""
    for layer, norm in pairs:
        bias = layer._parameters["bias"]
        if norm.running_mean is not None:
            norm.running_mean -= bias
        bias.zero_()
