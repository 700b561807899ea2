"""Activations that may write over their input."""

import torch

from advisor.step.tracing import is_fresh, trace_both, traces_switched

# In training, those whose gradient is the same from the output as from the input, to the bit.
GRADIENT_FROM_OUTPUT = (torch.nn.ReLU, torch.nn.ReLU6, torch.nn.Hardtanh, torch.nn.LeakyReLU)
GRADIENT_FROM_INPUT = (torch.nn.SiLU, torch.nn.Hardswish, torch.nn.Mish, torch.nn.ELU, torch.nn.Hardsigmoid)


def inplace_sites(model: torch.nn.Module, limit_s: float = 10.0) -> list[torch.nn.Module]:
    """The activations of a model whose input nobody else needs, neither forwards nor backwards.

    Nor may anybody need it once a switch of the user's layers is turned.
    """
    kinds = GRADIENT_FROM_OUTPUT if model.training else GRADIENT_FROM_OUTPUT + GRADIENT_FROM_INPUT
    safe = sites_in(trace_both(model, limit_s), kinds)
    turned = sites_in(traces_switched(model, limit_s), kinds)
    safe = {activation: is_safe and turned.get(activation, True) for activation, is_safe in safe.items()}
    return [activation for activation, is_safe in safe.items() if is_safe]


def sites_in(
    graphs: list[torch.fx.GraphModule], kinds: tuple[type[torch.nn.Module], ...]
) -> dict[torch.nn.Module, bool]:
    """The activations in some traces, and whether each may write over its input in all of them."""
    safe: dict[torch.nn.Module, bool] = {}
    for graph in graphs:
        for node in graph.graph.nodes:
            called = [graph.get_submodule(str(node.target))] if node.op == "call_module" else []
            for activation in called:
                if type(activation) in kinds and not getattr(activation, "inplace", True):
                    safe[activation] = safe.get(activation, True) and may_write(node, activation, graph)
    return safe


def may_write(node: torch.fx.Node, activation: torch.nn.Module, graph: torch.fx.GraphModule) -> bool:
    """Whether one call of an activation may write over its input."""
    # With a negative slope the output no longer tells which side of zero the input was on.
    tells_sign = float(getattr(activation, "negative_slope", 0.0)) >= 0
    return tells_sign and len(node.all_input_nodes) == 1 and is_fresh(node.all_input_nodes[0], graph)


def activations_in_place(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The activations of a model that write over their input already."""
    kinds = GRADIENT_FROM_OUTPUT + GRADIENT_FROM_INPUT
    return [module for module in model.modules() if type(module) in kinds and getattr(module, "inplace", False)]


def make_activations_inplace(model: torch.nn.Module) -> None:
    """Let every activation that may write over its input do so."""
    for activation in inplace_sites(model):
        vars(activation)["inplace"] = True


def make_activations_copy(model: torch.nn.Module) -> None:
    """Let no activation write over its input."""
    for activation in activations_in_place(model):
        vars(activation)["inplace"] = False
