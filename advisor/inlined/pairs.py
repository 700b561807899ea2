"""Layers whose result goes to one other layer only, found by torch.fx in the forward pass."""

import collections
from typing import Any

import torch


def layers_in_a_row(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Return pairs of layers: the second is the only user of the first one's result, and both are called once.

    Of a model that cannot be traced as a whole, as where it branches on its input, the parts are traced one by one.
    """
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception:  # whatever a forward pass does with stand-ins for tensors
        return [pair for part in model.children() for pair in layers_in_a_row(part)]
    finally:
        for attributes, kept in before:  # it may keep a stand-in in an attribute
            attributes.clear()
            attributes.update(kept)
    calls = graph.find_nodes(op="call_module")
    times = collections.Counter(call.target for call in calls)
    once = {call: model.get_submodule(str(call.target)) for call in calls if times[call.target] == 1}
    alone = [(call, *call.users) for call in once if len(call.users) == 1]
    return [(once[first], once[second]) for first, second in alone if second in once]
