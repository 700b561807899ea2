"""Chains of pointwise operations, compiled each by itself in a model that otherwise runs eagerly."""

import copy
import operator
import typing

import torch
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from advisor.step.late_hooks import LateHooks
from advisor.step.places import CONTENTS, is_plain, value_at
from advisor.step.stand_in import StandInForward
from advisor.step.tracing import IN_PLACE_NAMES, CannotTraceError, is_fresh, trace_both
from advisor.step.walk import found_in

POINTWISE_MODULES = tuple(
    getattr(torch.nn, name)
    for name in (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid"),
        *("Hardtanh", "Sigmoid", "LogSigmoid", "Tanh", "Softplus", "Softsign", "Tanhshrink", "Dropout"),
    )
)
POINTWISE_NAMES = {
    *("add", "sub", "mul", "div", "truediv", "neg", "pow", "square", "sqrt", "rsqrt", "exp", "log", "abs", "erf"),
    *("sin", "cos", "tanh", "sigmoid", "clamp", "where", "maximum", "minimum", "reciprocal", "lerp", "addcmul"),
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish", "hardsigmoid"),
    *("hardtanh", "softplus", "logsigmoid", "softsign"),
}
IN_PLACE_OPERATORS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ipow: operator.pow,
}


def traced_for_fusing(model: torch.nn.Module, limit_s: float = 10.0) -> torch.fx.GraphModule:
    """The model as one graph for both modes, free of in-place operations. Raises CannotTraceError."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise CannotTraceError("is or has TorchScript, which has been traced or compiled already")
    if "forward" in vars(model):
        raise CannotTraceError("has a forward of its own among its attributes, which a trace would replace")
    traced, evaluated = trace_both(model, limit_s)
    if any(type(module).train is not torch.nn.Module.train for module in model.modules()):
        raise CannotTraceError("sets the modes of its modules in a train() of its own, which a trace would lose")
    if str(traced.graph) != str(evaluated.graph):
        raise CannotTraceError("takes other paths in training than in evaluation, and a trace has one only")
    if state_names(traced) != state_names(model):
        raise CannotTraceError("has parameters or buffers that its forward does not use, which a trace would lose")
    for node in traced.graph.nodes:
        undo_in_place(node, traced)
    traced.recompile()
    traced.training = model.training
    return traced


def state_names(model: torch.nn.Module) -> set[str]:
    """The names of all parameters and buffers."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return parameters | {name for name, _ in model.named_buffers(remove_duplicate=False)}


def undo_in_place(node: torch.fx.Node, traced: torch.fx.GraphModule) -> None:
    """Replace an in-place operation by its usual form. Raises CannotTraceError when somebody else reads its input."""
    usual = usual_module(node, traced) if node.op == "call_module" else usual_form(node)
    if not usual:
        return
    written = node.all_input_nodes[0]
    if len(written.users) != 1 or not (is_fresh(written, traced) or is_pointwise(written, traced)):
        raise CannotTraceError("writes over a tensor that other operations may read, which fusing could reorder")
    node.target = usual
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "inplace"}


def usual_module(node: torch.fx.Node, traced: torch.fx.GraphModule) -> str:
    """The name of a copy of an in-place activation that is not in place; empty for any other module."""
    module = traced.get_submodule(str(node.target))
    if not getattr(module, "inplace", False):
        return ""
    copied = copy.copy(module)
    vars(copied)["inplace"] = False
    name = f"{str(node.target).replace('.', '_')}_not_in_place"
    traced.add_submodule(name, copied)
    return name


def usual_form(node: torch.fx.Node) -> typing.Any:
    """The function that computes an in-place function or method into a new tensor; None for any other operation."""
    if node.op not in ("call_function", "call_method"):
        return None
    name = name_of(node)
    if node.target in IN_PLACE_OPERATORS:
        return IN_PLACE_OPERATORS[node.target]
    if node.kwargs.get("inplace") and name in POINTWISE_NAMES:
        return node.target
    writes = (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE_NAMES
    if node.op == "call_method" and writes and name[:-1] in POINTWISE_NAMES:
        return name[:-1]
    positional = getattr(node.target, "__module__", "") == "torch.nn.functional" and True in node.args
    if positional or writes or node.kwargs.get("inplace") or "out" in node.kwargs or node.target is operator.setitem:
        raise CannotTraceError(f"writes into a tensor by {name}, which fusing could reorder")
    return None


def name_of(node: torch.fx.Node) -> str:
    """The bare name of the function or method that an operation calls."""
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def is_pointwise(node: torch.fx.Node, traced: torch.fx.GraphModule) -> bool:
    """Whether an operation computes each element from the elements at its place."""
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) in POINTWISE_MODULES
    return node.op in ("call_function", "call_method") and name_of(node) in POINTWISE_NAMES


def chains_in(traced: torch.fx.GraphModule) -> list[list[torch.fx.Node]]:
    """Chains of two or more pointwise operations, each with one result: all others are read inside it only.

    One result means that nothing outside stands between two of its operations. Arithmetic on sizes alone is no chain.
    """
    chain_of: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in traced.graph.nodes:
        if is_pointwise(node, traced):
            before = [source for source in node.all_input_nodes if source in chain_of and len(source.users) == 1]
            chain_of[node] = [member for source in before for member in chain_of.pop(source)] + [node]
    chains = [chain for chain in chain_of.values() if len(chain) >= 2]
    return [chain for chain in chains if any(getattr(n.target, "__module__", "") != "_operator" for n in chain)]


def fusable_chains(model: torch.nn.Module, limit_s: float = 10.0) -> int:
    """Count the chains of pointwise operations in a model. Raises CannotTraceError."""
    return len(chains_in(traced_for_fusing(model, limit_s)))


def fuse_pointwise_chains(model: torch.nn.Module) -> None:
    """Let a model's forward run a graph of it in which every pointwise chain is compiled. Raises CannotTraceError."""
    traced = traced_for_fusing(model)
    chains = [dict.fromkeys(chain) for chain in chains_in(traced)]
    fused = fuse_by_partitions(traced, chains, prefix="pointwise_chain_")
    for name, chain in list(fused.named_children()):
        if name.startswith("pointwise_chain_"):
            setattr(fused, name, torch.compile(chain))
    vars(model)["forward"] = FusedForward(model, fused)


class FusedForward(StandInForward):
    """A forward pass as a graph with modules, parameters and buffers of the model that it stands in."""

    def __init__(self, model: torch.nn.Module, fused: torch.fx.GraphModule) -> None:
        self.module = model
        self.fused = fused
        self.hooks = LateHooks(model)
        assert not self.hooks.differ, "the trace begins with those that are there"
        owners = {id(vars(part)): part for part in model.modules()}
        found = [place for place in found_in(model).places.values() if place[1] != CONTENTS]
        read = [(holder, name, value_at(holder, name)) for holder, name in found]
        # The values that the graph has taken over: of the model's layers, and of closures, modules and other objects.
        self.inside = [(owners[id(at)], name, value) for at, name, value in read if id(at) in owners]
        self.inside = [(part, name, value) for part, name, value in self.inside if is_plain(value)]
        self.around = [(holder, name, value) for holder, name, value in read if id(holder) not in owners]
        # Where the graph keeps what is the model's: in both, the namespace and the name.
        self.shared = [
            (vars(own)[kind], vars(copied)[kind], name)
            for path, copied in fused.named_modules()
            for own in [part_at(model, path)]
            for kind in ("_modules", "_parameters", "_buffers")
            for name, value in (vars(own)[kind].items() if own is not None and own is not copied else ())
            if value is not None and vars(copied)[kind].get(name) is value
        ]

    def __reduce__(self) -> typing.Any:
        # What is saved as a whole has its class's forward, and needs none of this.
        return getattr, (self.module, "forward")

    def __deepcopy__(self, memo: dict[int, typing.Any]) -> "FusedForward":
        memo[id(self)] = copied = object.__new__(type(self))
        memo[id(self.around)] = self.around
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The result of the model's own forward, which runs while its hooks or values differ from the graph's."""
        if self.hooks.differ or self.reads_others:
            return type(self.module).forward(self.module, *args, **kwargs)
        for own, copied, name in self.shared:  # a new head, or buffers on another device
            copied[name] = own.get(name)
        return type(self.fused).forward(self.fused, *args, **kwargs)

    @property
    def reads_others(self) -> bool:
        """Whether a value that the model's own forward reads is another than in the graph."""
        return any(is_other(vars(part).get(name), value) for part, name, value in self.inside) or any(
            is_other(value_at(holder, name), value) for holder, name, value in self.around
        )


def is_other(now: typing.Any, before: typing.Any) -> bool:
    """Whether a value is not the one before. Objects that are no plain values are compared by identity."""
    return now is not before and not (is_plain(now) and is_plain(before) and bool(now == before))


def part_at(model: torch.nn.Module, path: str) -> torch.nn.Module | None:
    """The module of a model at a path; None where it has none."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
