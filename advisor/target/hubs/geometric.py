"""PyTorch Geometric's models, and others that are called with ``x, edge_index``: a random graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from advisor.records import TargetSpec
from advisor.step.batch import ForwardInputs
from advisor.target.draws import buffers_kept, draws_kept
from advisor.target.guess import noise, whole_numbers, with_labels
from advisor.target.hubs.contract import Adapter, Samples

_NODES = 1024
_FEW_NODES = 32
_EDGES_PER_NODE = 8
_USUAL_FEATURES = 16
_GRAPH_INPUTS = ["x", "edge_index"]


class Geometric(Adapter):
    """Models of graphs. There are no names: the builders need the numbers of features."""

    order = 80
    package = "torch_geometric"

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Samples | None:
        if ForwardInputs(model).required != _GRAPH_INPUTS:
            return None
        features = spec.input_shape[-1] if spec.input_shape else _features(model)

        def graph(nodes: int) -> tuple[torch.Tensor, ...]:
            return noise(nodes, features), whole_numbers(nodes, 2, _EDGES_PER_NODE * nodes)

        nodes = spec.input_shape[0] if spec.input_shape else _NODES
        note = f"a random graph of {features} features a node and {_EDGES_PER_NODE} edges a node"
        make = _with_labels(model, graph) if train and model.training else None
        return Samples(make or graph, trains=make is not None, notes=(note,), counts="nodes", fixed_size=nodes)


def _with_labels(model: nn.Module, graph: Callable[[int], Any]) -> Callable[[int], Any] | None:
    """Graphs with a class for each node. The output is looked at on a small graph: layers look at the edges' values."""
    with draws_kept(model), buffers_kept(model), torch.no_grad():
        output = model(*graph(_FEW_NODES))
    return with_labels(graph, output, _FEW_NODES)


def _features(model: nn.Module) -> int:
    """The features that the first layer with ``in_channels`` takes."""
    for module in model.modules():
        channels = getattr(module, "in_channels", None)
        channels = channels[0] if isinstance(channels, tuple) else channels
        if isinstance(channels, int) and channels > 0:
            return channels
    return _USUAL_FEATURES
