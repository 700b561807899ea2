"""A random graph for PyTorch Geometric's models, and for others that are called with ``x, edge_index``."""

from dataclasses import replace

import torch
from torch import nn

from advisor.records import TargetSpec
from advisor.step.batch import ForwardInputs
from advisor.workloads.guess import noise, whole_numbers, with_labels
from advisor.workloads.hubs.contract import Adapter
from advisor.workloads.loop import Loop

_NODES, _FEW_NODES = 1024, 32
_EDGES_PER_NODE = 8
_USUAL_FEATURES = 16


class Geometric(Adapter):
    """Graph models. They cannot be built by name, because a builder needs the number of features."""

    package = "torch_geometric"

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        if ForwardInputs(model).required != ["x", "edge_index"]:
            return None
        channels = (getattr(module, "in_channels", None) for module in model.modules())
        numbers = (one[0] if isinstance(one, tuple) else one for one in channels)
        taken = next((number for number in numbers if isinstance(number, int) and number > 0), _USUAL_FEATURES)
        nodes, features = (spec.input_shape[0], spec.input_shape[-1]) if spec.input_shape else (_NODES, taken)

        def graph(nodes: int) -> tuple[torch.Tensor, ...]:
            return noise(nodes, features), whole_numbers(nodes, 2, _EDGES_PER_NODE * nodes)

        output = None
        if train and model.training:  # a small graph shows the number of classes; layers read edge values, so no meta
            with torch.no_grad():
                output = model(*graph(_FEW_NODES))
        note = f"a random graph of {features} features a node and {_EDGES_PER_NODE} edges a node"
        return replace(with_labels(graph, output, _FEW_NODES), notes=[note], usual_size=nodes)
