"""A module compiled where it is: it keeps its identity, its class and the names in its state dict."""

import contextlib
import gc
import sys
import typing
import warnings
import weakref

import torch

from advisor.step.late_hooks import unless_hooks_differ

# Modes that replay CUDA graphs, each with the mode that generates the same code and replays none.
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
GRAPHS_OPTION = "triton.cudagraphs"
# PyTorch from this version on notices which parameters are trained: https://github.com/pytorch/pytorch/pull/177158
NOTICES_TRAINING = "2.12"
# Number of steps under way that replay graphs. Not by thread: the backward pass runs in threads of its own.
STEPS_WITH_GRAPHS = [0]
# Reason to leave graphs out for the rest of the process; empty while they are replayed.
LEFT_OUT: list[str] = []
# The models whose gradients may lie in memory of graphs.
MODELS_WITH_GRAPHS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
SECOND_DERIVATIVE = (
    "compiled code cannot be differentiated twice (create_graph=True, as for a gradient penalty): leave out the "
    "settings compile.*, or take that gradient through a part of the model that is not compiled"
)


def compile_in_place(module: torch.nn.Module, *, is_block: bool = False, **options: typing.Any) -> None:
    """Compile what calling a module runs; ``options`` are those of torch.compile. A copy of it is not compiled.

    ``is_block``: it is a part of a model, whose inputs need gradients for its layers before it, or for a checkpoint.

    CUDA graphs are replayed by the steps of ``train_step`` and ``infer`` only: their gradients and outputs lie in
    memory that the next call overwrites, so a loop that adds up gradients, or keeps an output, would go wrong.

    A model that generates text runs uncompiled while it decodes, as it does behind the wrapper of torch.compile: the
    sizes of its cache change with every token, and each would be compiled.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        compile_in_place(module.module, is_block=is_block, **options)  # its own forward starts the communication
        return
    if type(module) in (torch.nn.ModuleList, torch.nn.ModuleDict):  # the parts are called
        for part in module.children():
            compile_in_place(part, is_block=is_block, **options)
        return
    call = compiled_call_of(module, module._call_impl, is_block=is_block, **options)
    vars(call)["options"] = options
    module._compiled_call_impl = call


def compile_inside_hooks(model: torch.nn.Module, units: typing.Sequence[torch.nn.Module]) -> None:
    """Compile the forward of each unit in place of calls that were compiled before the units were sharded.

    ``units`` are the blocks that ``fully_shard`` gathers one at a time; a compiled module without any in it is its own
    unit. Gathering happens in hooks, and a hook breaks the compiler's graph: a call that runs hooks is not compiled.
    """
    for module in list(model.modules()):
        options = getattr(module._compiled_call_impl, "options", None)
        if options is None:
            continue
        module._compiled_call_impl = None
        inside = [unit for unit in units if unit is not module and any(unit is part for part in module.modules())]
        config: typing.Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 2 * len(inside))
        for part in inside or [module]:
            call = compiled_call_of(part, part.forward, is_block=part is not model, **options)
            vars(call)["__wrapped__"] = part.forward  # whose signature tells how a batch is split
            vars(part)["forward"] = call


def compiled_call_of(
    module: torch.nn.Module, plain: typing.Callable[..., typing.Any], *, is_block: bool, **options: typing.Any
) -> typing.Callable[..., typing.Any]:
    """A compiled form of ``plain``, a module's call or its forward, that runs ``plain`` where compiled code cannot."""
    keep_draws_of_numpy()
    compiled: typing.Any = torch.compile(frame_of(module, plain), **options)
    call, without = compiled, without_graphs(options)
    if without != options:
        call = graphs_in_steps(module, compiled, torch.compile(frame_of(module, plain), **without))
    if torch.__version__ < NOTICES_TRAINING:
        call = noticing_training(module, call)
    if hasattr(module, "generate"):
        call = unless_decoding(plain, call)
    call = refusing_second_derivatives(call)
    if not is_block:
        call = plain_for_gradients_of_inputs(plain, call)
    call = unless_hooks_differ(module, call, plain, of_inner=True, is_block=is_block)
    vars(call)["get_compiler_config"] = compiled.get_compiler_config
    return call


def frame_of(module: torch.nn.Module, plain: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """Return a module's call, or its forward, as a function whose frames the compiler takes."""
    home = getattr(type(module).forward, "__module__", None) or ""  # None for code that was generated, as torch.fx does
    if not home.startswith("torch.nn.") or "forward" in vars(module):
        return plain

    # Dynamo skips PyTorch's own frames unless they are called from another.
    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return plain(*args, **kwargs)

    return call


def keep_draws_of_numpy() -> None:
    """Have compiled code draw NumPy's random numbers from NumPy; the compiler would take others from PyTorch."""
    config: typing.Any = torch._dynamo.config
    config.use_numpy_random_stream = True


def without_graphs(options: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Options of torch.compile that generate the same code and replay no CUDA graphs; the same where none did."""
    if options.get("mode") in WITHOUT_GRAPHS:
        return {**options, "mode": WITHOUT_GRAPHS[options["mode"]]}
    if (options.get("options") or {}).get(GRAPHS_OPTION):
        return {**options, "options": {**options["options"], GRAPHS_OPTION: False}}
    return options


@contextlib.contextmanager
def replaying_graphs() -> typing.Iterator[None]:
    """Let models that are compiled in place replay CUDA graphs inside this context, if their mode has any."""
    count = 0 if LEFT_OUT else 1
    STEPS_WITH_GRAPHS[0] += count
    try:
        yield
    finally:
        STEPS_WITH_GRAPHS[0] -= count


def begin_step(device: torch.device, *, outputs_hold_graphs: bool = False) -> None:
    """Tell the compiler's CUDA graphs that a step begins: its calls overwrite what those of the last step returned.

    Gradients that nobody cleared, such as those of a trunk that another optimizer trains, are copied before. Where
    something else is still in use, such as an output that a hook, the model or the loss keeps, no graph is replayed
    from now on. That cannot be told where what the step returned still holds memory of its own backward pass
    (``outputs_hold_graphs``).
    """
    if LEFT_OUT:
        return
    if in_use := addresses_in_use(device):
        copy_gradients(in_use)
        if not outputs_hold_graphs and addresses_in_use(device):
            gc.collect()  # objects that refer to one another are in use until then
            if addresses_in_use(device):
                leave_graphs_out("something keeps an output of the compiled code beyond its step")
                return
    torch.compiler.cudagraph_mark_step_begin()


def leave_graphs_out(reason: str) -> None:
    """Replay no more CUDA graphs in this process: the next replay would overwrite memory in use."""
    if not LEFT_OUT:
        LEFT_OUT.append(reason)
        warnings.warn(f"the CUDA graphs of compiled code are left out from now on: {reason}", stacklevel=5)


def addresses_in_use(device: torch.device) -> set[int]:
    """The addresses of live tensors that the last step's graphs returned; gradients among them."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or device.type != "cuda":
        return set()
    number = torch.cuda.current_device() if device.index is None else device.index
    manager = trees.get_manager(number, create_if_none_exists=False)
    if manager is None or manager.current_node is None:
        return set()
    returned = [output for node in manager.current_node._path_from_root for output in node.outputs_weakrefs]
    return {output.data_ptr() for output in returned if trees.is_live(output)}


def copy_gradients(addresses: set[int]) -> None:
    """Copy the gradients of models that lie at these addresses."""
    for model in list(MODELS_WITH_GRAPHS):
        for parameter in model.parameters():
            gradient = parameter.grad
            if gradient is None or gradient.layout is not torch.strided:
                continue
            if gradient.untyped_storage().data_ptr() in addresses:
                parameter.grad = gradient.clone()


def plain_for_gradients_of_inputs(
    plain: typing.Callable[..., typing.Any], compiled: typing.Callable[..., typing.Any]
) -> typing.Callable[..., typing.Any]:
    """The compiled call; the plain one where a loop wants the gradient of an input: it may differentiate that again.

    So do gradient penalties, forces from energies, and equations as losses.
    """

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        given = [*args, *kwargs.values()]
        tensors = [one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)]
        if torch.is_grad_enabled() and any(one.requires_grad and one.is_leaf for one in tensors):
            return plain(*args, **kwargs)
        return compiled(*args, **kwargs)

    return call


def refusing_second_derivatives(call: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """The compiled call; a gradient that is to be differentiated again is refused before PyTorch fails at it."""

    def checked(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        output = call(*args, **kwargs)
        # torch.func computes every gradient so that it could be differentiated: nobody knows whether it will be.
        in_func = torch._C._functorch.peek_interpreter_stack() is not None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not in_func:
            for tensor in outputs_in(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(refuse_second_derivative)
        return output

    return checked


def refuse_second_derivative(_: torch.Tensor) -> None:
    """A hook that raises RuntimeError for a gradient that is to be differentiated in turn (``create_graph=True``)."""
    if torch.is_grad_enabled():
        raise RuntimeError(SECOND_DERIVATIVE)


def outputs_in(output: typing.Any) -> list[torch.Tensor]:
    """The tensors that a model returns: one, or those of a tuple, a list or a mapping."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [part for part in output if isinstance(part, torch.Tensor)] if isinstance(output, list | tuple) else []


def graphs_in_steps(
    module: torch.nn.Module, graphed: typing.Any, plain: typing.Any
) -> typing.Callable[..., typing.Any]:
    """A call that uses ``graphed`` inside a step and ``plain`` elsewhere. A training loop is told."""
    told: list[bool] = []

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if STEPS_WITH_GRAPHS[0]:
            return graphed(*args, **kwargs)
        if not told and not LEFT_OUT and module.training and torch.is_grad_enabled():
            told.append(True)
            warnings.warn(
                f"the CUDA graphs of this compiled {type(module).__name__} are left out: they run in the step of "
                "train_step() only, because a loop of your own may read gradients that the next call overwrites",
                stacklevel=4,
            )
        return plain(*args, **kwargs)

    return call


def noticing_training(module: torch.nn.Module, compiled: typing.Any) -> typing.Callable[..., typing.Any]:
    """The compiled call, which first tells the compiler where layers were frozen or unfrozen since the last one."""
    parameters = list(module.parameters())
    trained = [parameter.requires_grad for parameter in parameters]

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        now = [parameter.requires_grad for parameter in parameters]
        if now != trained:
            trained[:] = now
            check_parameters_anew(module)
        return compiled(*args, **kwargs)

    return call


def check_parameters_anew(model: torch.nn.Module) -> None:
    """Have compiled code look at every parameter before it runs the next time.

    Before PyTorch 2.12 it takes the tensors of a dictionary that nobody changed for unchanged, although layers were
    frozen or unfrozen (https://github.com/pytorch/pytorch/issues/139476). Adding a name and removing it changes it.
    """
    for module in model.modules():
        if isinstance(module._parameters, dict):  # a scripted module has something else
            module._parameters["_"] = None
            del module._parameters["_"]


def unless_decoding(plain: typing.Callable[..., typing.Any], compiled: typing.Any) -> typing.Callable[..., typing.Any]:
    """The compiled call, but the plain one where a cache of keys and values is passed."""

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if kwargs.get("past_key_values") is not None:
            return plain(*args, **kwargs)
        return compiled(*args, **kwargs)

    return call
