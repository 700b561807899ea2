"""A model as a graph of its operations, by torch.fx, or the reason why it cannot be one."""

import contextlib
import inspect
import operator
import re
import time
import typing

import torch

from advisor.step.host_draws import AllHostDraws, draws_kept, own_draws_kept
from advisor.step.owners import is_of_package
from advisor.step.places import inner_state
from advisor.step.python_state import OF_TORCH, PythonState, buffers_kept
from advisor.step.read_code import names_read
from advisor.step.walk import found_in
from advisor.step.writes import writes_undone

TOO_LONG_TO_TRACE = "has too many operations to trace in reasonable time"


class CannotTraceError(ValueError):
    """A model cannot be traced; the message is the rest of a sentence that begins with the model."""


def not_followed(tracer: str, error: Exception) -> CannotTraceError:
    """Return the error for a forward that a tracer cannot follow, with the reason in plain words."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        text = "its operations depend on the values of a tensor"
    elif isinstance(error, torch.fx.proxy.TraceError) and "control flow" in text:
        text = "its operations depend on its inputs"
    elif "item assignment" in text:
        text = "it writes into part of a tensor, by item assignment"
    elif re.search(r"Proxy|<class|__\w+__", text):  # about the stand-ins, which a person has not written
        text = "it uses a tensor in a way that cannot be recorded"
    return CannotTraceError(f"has a forward that {tracer} cannot follow: {text}")


IN_PLACE_NAMES = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)


class WritingProxy(torch.fx.Proxy):
    """torch.fx's stand-in for a tensor that records ``x += y`` as a write; its own records ``x + y``."""


def writing_operator(name: str) -> typing.Callable[[torch.fx.Proxy, object], torch.fx.Proxy]:
    """The method that records an in-place operator."""
    function = getattr(operator, name)
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


for in_place_name in IN_PLACE_NAMES:
    setattr(WritingProxy, f"__{in_place_name}__", writing_operator(in_place_name))


class LimitedTracer(torch.fx.Tracer):
    """torch.fx's tracer, which sees in-place operators and gives up after ``limit_s``."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._deadline = time.monotonic() + limit_s

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """The stand-in for an operation's result."""
        return WritingProxy(node, self)

    def create_node(self, *args: typing.Any, **kwargs: typing.Any) -> torch.fx.Node:
        """One more operation in the graph."""
        if time.monotonic() > self._deadline:
            raise CannotTraceError(TOO_LONG_TO_TRACE)
        return super().create_node(*args, **kwargs)


def inputs_to_trace(model: torch.nn.Module) -> list[inspect.Parameter]:
    """The parameters of a model's forward. Raises CannotTraceError for TorchScript, and for one without a signature."""
    if isinstance(model, torch.jit.ScriptModule):
        raise CannotTraceError("is TorchScript, which has been traced or compiled already")
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except ValueError as error:
        raise CannotTraceError("has a forward without a signature") from error


def trace(model: torch.nn.Module, limit_s: float = 10.0) -> torch.fx.GraphModule:
    """The model as it runs in its present mode. Raises CannotTraceError where a trace would lose something.

    The graph calls PyTorch's own modules as they are, and shares them and all parameters with the model.
    """
    refuse_options_and_hooks(model)
    before = PythonState(model.modules(), with_hooks=True)
    versions = written_versions(model)
    with buffers_kept(model):
        try:
            with draws_refused(model), own_functions_refused(), writes_undone(model) as writes:
                graph = LimitedTracer(limit_s).trace(model)
                wrote = writes.any_so_far
            freezes = wrote or before.is_other_now or written_versions(model) != versions
            traced = None if freezes else torch.fx.GraphModule(model, graph, type(model).__name__)
        except CannotTraceError:
            raise
        except Exception as error:
            raise not_followed("torch.fx", error) from error
        finally:
            before.put_back()
    if traced is None:
        raise CannotTraceError("makes tensors of its own or keeps values in its forward, which a trace would freeze")
    return traced


def refuse_options_and_hooks(model: torch.nn.Module) -> None:
    """Raise CannotTraceError for optional arguments of a forward, and for forward hooks."""
    parameters = inputs_to_trace(model)
    if any(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise CannotTraceError("has a forward with optional arguments, whose absence a trace does not notice")
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise CannotTraceError("has forward hooks, which a trace would lose")


def trace_both(model: torch.nn.Module, limit_s: float = 10.0) -> list[torch.fx.GraphModule]:
    """The model traced in training and in evaluation mode; its modes are afterwards as they were.

    A ``train()`` of its own is not called: it may do more than set modes, as that of LoRA, which merges weights.
    """
    modes = {module: module.training for module in model.modules()}
    traced = []
    try:
        for training in (True, False):
            for module in modes:
                module.training = training
            traced.append(trace(model, limit_s))
        return traced
    finally:
        for module, training in modes.items():
            module.training = training


def traces_switched(model: torch.nn.Module, limit_s: float = 10.0) -> list[torch.fx.GraphModule]:
    """The model traced with each switch of the user's layers the other way, where a tracer can follow it then.

    A switch is an attribute, True or False, that the forward of a layer reads: a loop may turn it later.
    """
    found: dict[tuple[type, str], list[torch.nn.Module]] = {}
    for module in model.modules():
        kind: typing.Any = type(module)
        read = () if is_of_package(kind) else (names_read(kind, "forward") & vars(module).keys()) - OF_TORCH
        for name in sorted(one for one in read if type(vars(module)[one]) is bool):
            found.setdefault((kind, name), []).append(module)
    traced = []
    for (_, name), modules in found.items():
        with contextlib.suppress(CannotTraceError), turned(modules, name):
            traced += trace_both(model, limit_s)
    return traced


@contextlib.contextmanager
def turned(modules: list[torch.nn.Module], name: str) -> typing.Iterator[None]:
    """Inside this context an attribute of these modules is the other way."""
    before = [vars(module)[name] for module in modules]
    try:
        for module, value in zip(modules, before, strict=True):
            vars(module)[name] = not value
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            vars(module)[name] = value


@contextlib.contextmanager
def draws_refused(model: torch.nn.Module) -> typing.Iterator[None]:
    """Give random generators their states back on leaving. Raises CannotTraceError where the code inside drew numbers.

    What they decide, as which layers are left out at random, a trace would repeat.
    """
    generators = found_in(model).generators
    with draws_kept(model), own_draws_kept(generators):
        before = AllHostDraws().numbers(), list(map(inner_state, generators))
        yield
        if before != (AllHostDraws().numbers(), list(map(inner_state, generators))):
            raise CannotTraceError("draws random numbers in its forward, whose decisions a trace would freeze")


@contextlib.contextmanager
def own_functions_refused() -> typing.Iterator[None]:
    """Inside this context a custom autograd function raises: a trace would see its forward and lose its backward."""
    function: typing.Any = torch.autograd.Function
    usual = vars(function)["apply"]

    def refuse(cls: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> None:
        raise CannotTraceError(f"uses the autograd function {cls.__name__}, whose backward a trace would lose")

    function.apply = classmethod(refuse)
    try:
        yield
    finally:
        function.apply = usual


def written_versions(model: torch.nn.Module) -> list[int | None]:
    """The number of writes to each parameter and buffer. A write that the trace does not record changes it."""
    tensors = [*model.parameters(), *model.buffers()]
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]


# Operations that make a new tensor and do not read it in their backward pass.
FRESH_MODULES = (
    torch.nn.Linear,
    torch.nn.modules.conv._ConvNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.GroupNorm,
    torch.nn.LayerNorm,
)
FRESH_FUNCTIONS = ("add", "sub", "mul", "matmul", "cat", "conv1d", "conv2d", "conv3d", "linear")


def is_fresh(node: torch.fx.Node, graph: torch.fx.GraphModule) -> bool:
    """Whether a tensor is new, read by one operation only, and not needed by its own operation's backward pass."""
    if len(node.users) != 1:
        return False
    if node.op == "call_module":
        return isinstance(graph.get_submodule(str(node.target)), FRESH_MODULES)
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name in ("iadd", "isub"):  # written into a tensor that has to be as free
        return is_fresh(node.all_input_nodes[0], graph)
    return node.op in ("call_function", "call_method") and name in FRESH_FUNCTIONS
