"""A torch.compile backend that compiles only pointwise operations, like torch.jit.script's fusion."""

from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition  # type: ignore[import-untyped]
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support


def is_pointwise(_: Any, node: torch.fx.Node) -> bool:
    """Whether an operator is pointwise (an element depends only on the elements at its place) and not random."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def compile_chains(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Return the graph with its groups of two or more pointwise operators compiled. Other operators run eagerly."""
    grouped = CapabilityBasedPartitioner(graph, create_op_support(is_pointwise)).partition_and_fuse()
    for name in [str(node.target) for node in grouped.graph.find_nodes(op="call_module")]:
        group = grouped.get_submodule(name)
        grouped.delete_submodule(name)
        setattr(grouped, name, torch.compile(group))
    return make_boxed_func(grouped.forward)


pointwise_only = aot_autograd(
    fw_compiler=compile_chains, bw_compiler=compile_chains, partition_fn=min_cut_rematerialization_partition
)
