"""Layers whose results go to a norm and nowhere else, found by tracing the model."""

import contextlib
import io
import itertools
import logging
import time
import typing
import warnings

import torch

from advisor.step.host_draws import draws_kept
from advisor.step.python_state import PythonState
from advisor.step.tracing import (
    TOO_LONG_TO_TRACE,
    CannotTraceError,
    LimitedTracer,
    draws_refused,
    inputs_to_trace,
    not_followed,
)
from advisor.step.writes import WritesUndone

LAYERS = (torch.nn.modules.conv._ConvNd, torch.nn.Linear)
NORMS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
CONVOLUTIONS = {f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)} | {"convolution"}
# Reading these of a tensor does not look at its values.
METADATA = {"shape", "ndim", "dtype", "device", "is_cuda", "size", "sym_size", "dim", "numel", "stride", "get_device"}


class Layer(typing.NamedTuple):
    """A call of a convolution or a linear layer; ``module`` where it is one of PyTorch's own."""

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    module: torch.nn.Module | None


class Norm(typing.NamedTuple):
    """A call of a batch or instance norm; ``by_batch`` when it subtracts the mean of its input."""

    source: torch.fx.Node
    running_mean: torch.Tensor | None
    by_batch: bool
    module: torch.nn.Module | None


class View(typing.NamedTuple):
    """One trace: its operations, the tensors that some of them stand for, its layers and norms, and the mode.

    ``same`` maps identities to what goes into them. What goes into or comes out of ``seen`` may be looked at from
    outside the graph: by a hook, or because the model keeps it.
    """

    nodes: list[torch.fx.Node]
    tensors: dict[torch.fx.Node, torch.Tensor]
    layers: dict[torch.fx.Node, Layer]
    norms: dict[torch.fx.Node, Norm]
    same: dict[torch.fx.Node, torch.fx.Node]
    seen: set[torch.fx.Node]
    training: bool


class PairTracer(LimitedTracer):
    """Traces connections of layers; the graph never runs. Hooks are passed over, and values they see are noted."""

    proxy_buffer_attributes = True

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.seen: set[torch.fx.Node] = set()

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is a leaf of the trace: PyTorch's own, or a subclass of a layer or norm with its forward."""
        return super().is_leaf_module(m, module_qualified_name) or runs_own_forward(m)

    def call_module(self, m: torch.nn.Module, forward: typing.Any, args: typing.Any, kwargs: typing.Any) -> typing.Any:
        """A module's result without its hooks."""
        returned = super().call_module(m, m.forward, args, kwargs)
        if has_hooks(m):
            self.seen |= nodes_in((args, kwargs, returned))
        return returned


class Deadline(torch.overrides.TorchFunctionMode):
    """Inside this context PyTorch's functions raise CannotTraceError once the time is over."""

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline

    def __torch_function__(
        self, func: typing.Any, types: typing.Any, args: typing.Any = (), kwargs: typing.Any = None
    ) -> typing.Any:
        if time.monotonic() > self.deadline:
            raise CannotTraceError(TOO_LONG_TO_TRACE)
        return func(*args, **(kwargs or {}))


def views_of(
    model: torch.nn.Module, modes: tuple[bool, ...], data: typing.Any = None, limit_s: float = 5.0
) -> list[View]:
    """The model traced in these modes (True is training): by torch.fx, or where that fails by torch.export.

    The latter runs the model on a few samples of ``data``: a DataLoader, a batch, or a callable that makes one. What
    a trace changes in the model is put back. Raises CannotTraceError.
    """
    deadline = time.monotonic() + limit_s
    try:
        return [view for training in modes for view in views_by_fx(model, training, deadline)]
    except CannotTraceError as error:
        problem = error
    for example in [] if any(map(has_hooks, model.modules())) else example_calls(model, data, any(modes)):
        try:
            return [view_by_export(model, training, example, deadline) for training in modes]
        except CannotTraceError as error:
            problem = error
    raise problem


def views_by_fx(model: torch.nn.Module, training: bool, deadline: float) -> list[View]:
    """Traces by torch.fx. A forward with optional arguments is traced with and without them."""
    defaults = {p.name: p.default for p in inputs_to_trace(model) if p.default is not p.empty}
    return [view_by_fx(model, training, deadline, given) for given in ([None, defaults] if defaults else [None])]


def view_by_fx(model: torch.nn.Module, training: bool, deadline: float, defaults: dict[str, typing.Any] | None) -> View:
    """A trace by torch.fx; with ``defaults``, those arguments have these values."""
    tracer = PairTracer(deadline - time.monotonic())
    try:
        with kept_as_it_is(model, training), functions_recorded(tracer):
            graph = tracer.trace(model, concrete_args=defaults)
            own = dict(model.named_parameters()) | dict(model.named_buffers())
            names = {node: str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
            tensors = {node: own[name] for node, name in names.items() if node.op == "get_attr" and name in own}
            called = {node: model.get_submodule(name) for node, name in names.items() if node.op == "call_module"}
            seen = tracer.seen | nodes_in([list(vars(module).values()) for module in model.modules()])
            return view_from(list(graph.nodes), tensors, called, seen, training)
    except CannotTraceError:
        raise
    except Exception as error:
        raise not_followed("torch.fx", error) from error


def view_by_export(
    model: torch.nn.Module,
    training: bool,
    example: tuple[tuple[typing.Any, ...], dict[str, typing.Any]],
    deadline: float,
) -> View:
    """A trace by torch.export of one call of the model."""
    try:
        with kept_as_it_is(model, training), without_messages(), Deadline(deadline):
            program = torch.export.export(model, *example, strict=False)
            signature = program.graph_signature
            names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
            own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
            nodes = list(program.graph.nodes)
            tensors = {node: own[names[node.name]] for node in nodes if names.get(node.name) in own}
            called = {node: called_by(node, model) for node in nodes if node.meta.get("nn_module_stack")}
            return view_from(nodes, tensors, called, set(), training)
    except CannotTraceError:
        raise
    except Exception as error:
        raise not_followed("torch.export", error) from error


def called_by(node: torch.fx.Node, model: torch.nn.Module) -> torch.nn.Module:
    """The innermost module whose forward ran an exported operation."""
    path = str(list(node.meta["nn_module_stack"].values())[-1][0])
    return model.get_submodule(path.partition("@")[0])


def view_from(
    nodes: list[torch.fx.Node],
    tensors: dict[torch.fx.Node, torch.Tensor],
    called: dict[torch.fx.Node, torch.nn.Module],
    seen: set[torch.fx.Node],
    training: bool,
) -> View:
    """The layers and norms among the operations of a trace."""
    layers = {node: layer for node in nodes if (layer := layer_at(node, tensors, called.get(node)))}
    norms = {node: norm for node in nodes if (norm := norm_at(node, tensors, called.get(node)))}
    identities = [n for n in nodes if n.op == "call_module" and isinstance(called[n], torch.nn.Identity)]
    same = {node: node.all_input_nodes[0] for node in identities if node not in seen}
    return View(nodes, tensors, layers, norms, same, seen, training)


def layer_at(
    node: torch.fx.Node, tensors: dict[torch.fx.Node, torch.Tensor], module: torch.nn.Module | None
) -> Layer | None:
    """The convolution or linear layer that an operation is, if it is one."""
    own = module if isinstance(module, LAYERS) and runs_own_forward(module) else None
    if node.op == "call_module":
        return Layer(own._parameters.get("weight"), own._parameters.get("bias"), own) if own is not None else None
    if function_name(node) not in CONVOLUTIONS | {"linear"}:
        return None
    weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
    return Layer(tensors.get(weight), tensors.get(bias), own)


def norm_at(
    node: torch.fx.Node, tensors: dict[torch.fx.Node, torch.Tensor], module: torch.nn.Module | None
) -> Norm | None:
    """The batch or instance norm that an operation is, if it is one."""
    own: typing.Any = module if isinstance(module, NORMS) and runs_own_forward(module) else None
    source = argument(node, 0, "input")
    if node.op == "call_module":
        return Norm(source, own.running_mean, own.training or own.running_mean is None, own) if own else None
    name = function_name(node)
    if name not in ("batch_norm", "instance_norm"):
        return None
    python = node.target in (torch.nn.functional.batch_norm, torch.nn.functional.instance_norm)
    flag = "training" if name == "batch_norm" else "use_input_stats"
    by_batch = argument(node, 5, flag, default=name == "instance_norm")
    mean = argument(node, 1 if python else 3, "running_mean")
    if not isinstance(by_batch, bool) or (mean is not None and mean not in tensors):
        return None
    return Norm(source, tensors.get(mean), by_batch, own)


def argument(node: torch.fx.Node, place: int, name: str, default: typing.Any = None) -> typing.Any:
    """An operation's argument by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def function_name(node: torch.fx.Node) -> str:
    """The bare name of the function of PyTorch's that an operation calls; empty for anything else."""
    if node.op != "call_function" or not str(getattr(node.target, "__module__", None) or "torch").startswith("torch"):
        return ""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def runs_own_forward(module: torch.nn.Module) -> bool:
    """Whether a module is a layer or norm that runs the forward which PyTorch gave it."""
    own = vars(module).get("forward")
    if not isinstance(module, LAYERS + NORMS) or not (own is None or getattr(own, "runs_class_forward", False)):
        return False
    functions = [type(module).forward, getattr(type(module), "_conv_forward", None)]
    return all(function is None or function.__module__.startswith("torch.nn.modules.") for function in functions)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks see the inputs or outputs of a module."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def nodes_in(values: typing.Any) -> set[torch.fx.Node]:
    """The operations whose results are among these values."""
    leaves = torch.utils._pytree.tree_leaves(values)
    return {leaf.node for leaf in leaves if isinstance(leaf, torch.fx.Proxy)}


def consumers(node: torch.fx.Node, view: View) -> typing.Iterator[torch.fx.Node]:
    """The operations that read the values of an operation's result."""
    for user in node.users:
        if user in view.same:
            yield from consumers(user, view)
        elif not reads_metadata(user):
            yield user


def reads_metadata(node: torch.fx.Node) -> bool:
    """Whether an operation reads a shape, a type or a device only."""
    if node.op == "call_method":
        return node.target in METADATA
    name = node.args[1] if node.target is getattr else function_name(node)
    return node.op == "call_function" and name in METADATA


def layer_before(norm: Norm, view: View) -> torch.fx.Node | None:
    """The layer that a norm gets its input from, if it gets it from one."""
    node = norm.source
    while node in view.same:
        node = view.same[node]
    return node if node in view.layers else None


def norms_after(node: torch.fx.Node, view: View) -> list[Norm]:
    """The norms that take an operation's result; none when anything else takes it too, or it is seen from outside."""
    readers = list(consumers(node, view))
    if node in view.seen or any(reader not in view.norms for reader in readers):
        return []
    return [view.norms[reader] for reader in readers]


@contextlib.contextmanager
def kept_as_it_is(model: torch.nn.Module, training: bool) -> typing.Iterator[None]:
    """Inside this context the model is in a mode, and draws no random numbers; afterwards it is as it was.

    In training, what was in evaluation mode inside a model in training mode stays so: it is frozen.
    """
    frozen = [module for module in model.modules() if model.training and not module.training]
    state, writes = PythonState(model.modules(), with_hooks=True), WritesUndone(model)
    try:
        with writes.memory:
            model.train(training)
        for module in frozen:
            module.training = False
        with draws_refused(model):
            yield
    finally:
        state.put_back()
        writes.put_back()


@contextlib.contextmanager
def without_messages() -> typing.Iterator[None]:
    """Silence torch.export inside this context: it prints the whole graph of a trace that fails."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def functions_recorded(tracer: torch.fx.Tracer) -> typing.Iterator[None]:
    """Inside this context a custom autograd function is one operation of the trace."""
    function: typing.Any = torch.autograd.Function
    usual = vars(function)["apply"]

    def record(cls: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if nodes_in((args, kwargs)):
            return tracer.create_proxy("call_function", cls.forward, args, kwargs)
        return usual.__get__(None, cls)(*args, **kwargs)

    function.apply = classmethod(record)
    try:
        yield
    finally:
        function.apply = usual


def example_calls(
    model: torch.nn.Module, data: typing.Any, with_target: bool
) -> list[tuple[tuple[typing.Any, ...], dict[str, typing.Any]]]:
    """Arguments to call a model with, the likeliest first; none when there is no batch to take them from."""
    device = next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), None)
    try:
        with draws_kept(model):
            samples = few_samples(data)
    except Exception:  # a dataset may ask for other indices, a callable for another size: then there is no example
        return []
    if samples is None:
        return []
    samples = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), samples)
    parameters = inputs_to_trace(model)
    if hasattr(samples, "keys"):
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        return [((), {name: samples[name] for name in samples if open_ended or name in names})]
    if not isinstance(samples, (tuple, list)):
        return [((samples,), {})]
    without_target: tuple[typing.Any, dict[str, typing.Any]] = (tuple(samples[:-1]), {})
    if with_target:
        return [without_target]
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return [(tuple(samples if open_ended else samples[: len(places)]), {}), without_target]


def few_samples(data: typing.Any) -> typing.Any:
    """A batch of two samples if the data can make one, else the batch that is given."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return data(2) if callable(data) else data
    if isinstance(data.dataset, torch.utils.data.IterableDataset):
        return None
    if data.batch_size is None and data.batch_sampler is None:
        return data.dataset[0]
    return data.collate_fn([data.dataset[0], data.dataset[1]])
