"""Find layers whose result goes to only one other layer, by tracing the forward pass with torch.fx."""

import collections
from typing import Any

import torch


def layers_in_a_row(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Return pairs of layers: the second is the only user of the first layer's result, and both are called once.

    If a model cannot be traced as a whole (it branches on its input, for example), its children are traced separately.
    """
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception:  # a forward pass may raise anything for the tracer's stand-ins
        return [pair for part in model.children() for pair in layers_in_a_row(part)]
    finally:
        for attributes, kept in before:  # the trace may have stored a stand-in in a module
            attributes.clear()
            attributes.update(kept)
    calls = graph.find_nodes(op="call_module")
    times = collections.Counter(call.target for call in calls)
    once = {call: model.get_submodule(str(call.target)) for call in calls if times[call.target] == 1}
    alone = [(call, *call.users) for call in once if len(call.users) == 1]
    return [(once[first], once[second]) for first, second in alone if second in once]
