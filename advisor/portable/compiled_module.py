"""A module compiled where it is: it keeps its identity, its class and the names in its state dict."""

import contextlib
import typing
import warnings

import torch

# Modes that replay CUDA graphs, each with the mode that generates the same code and replays none.
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
GRAPHS_OPTION = "triton.cudagraphs"
# PyTorch from this version on notices which parameters are trained: https://github.com/pytorch/pytorch/pull/177158
NOTICES_TRAINING = "2.12"
# How many steps that replay graphs are under way. Not by thread: the backward pass runs in threads of its own.
STEPS_WITH_GRAPHS = [0]


def compile_in_place(module: torch.nn.Module, **options: typing.Any) -> None:
    """Compile what calling a module runs; ``options`` are those of torch.compile. A copy of it is not compiled.

    CUDA graphs are replayed by the steps of ``train_step`` and ``infer`` only: their gradients and outputs lie in
    memory that the next call overwrites, so a loop that adds up gradients, or keeps an output, would go wrong.

    A model that generates text runs uncompiled while it decodes, as it does behind the wrapper of torch.compile: the
    sizes of its cache change with every token, and each would be compiled.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        compile_in_place(module.module, **options)  # its own forward starts the communication
        return
    compiled: typing.Any = torch.compile(frame_of(module), **options)
    call, plain = compiled, without_graphs(options)
    if plain != options:
        call = graphs_in_steps(module, compiled, torch.compile(frame_of(module), **plain))
    if torch.__version__ < NOTICES_TRAINING:
        call = noticing_training(module, call)
    if hasattr(module, "generate"):
        call = unless_decoding(module, call)
    if call is not compiled:
        vars(call)["get_compiler_config"] = compiled.get_compiler_config
    module._compiled_call_impl = call


def frame_of(module: torch.nn.Module) -> typing.Callable[..., typing.Any]:
    """What a module's call runs, as a function whose frames the compiler takes."""
    if not getattr(type(module).forward, "__module__", "").startswith("torch.nn.") or "forward" in vars(module):
        return module._call_impl

    # Dynamo skips PyTorch's own frames unless they are called from another.
    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return module._call_impl(*args, **kwargs)

    return call


def without_graphs(options: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Options of torch.compile that generate the same code and replay no CUDA graphs; the same where none did."""
    if options.get("mode") in WITHOUT_GRAPHS:
        return {**options, "mode": WITHOUT_GRAPHS[options["mode"]]}
    if (options.get("options") or {}).get(GRAPHS_OPTION):
        return {**options, "options": {**options["options"], GRAPHS_OPTION: False}}
    return options


@contextlib.contextmanager
def replaying_graphs() -> typing.Iterator[None]:
    """Inside this context models that are compiled in place replay CUDA graphs, if their mode has any."""
    STEPS_WITH_GRAPHS[0] += 1
    try:
        yield
    finally:
        STEPS_WITH_GRAPHS[0] -= 1


def graphs_in_steps(
    module: torch.nn.Module, graphed: typing.Any, plain: typing.Any
) -> typing.Callable[..., typing.Any]:
    """The compiled call that replays graphs in a step, and elsewhere the one that does not. A training loop is told."""
    told: list[bool] = []

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if STEPS_WITH_GRAPHS[0]:
            return graphed(*args, **kwargs)
        if not told and module.training and torch.is_grad_enabled():
            told.append(True)
            warnings.warn(
                f"the CUDA graphs of this compiled {type(module).__name__} are left out: they run in the step of "
                "train_step() only, because a loop of your own may read gradients that the next call overwrites",
                stacklevel=4,
            )
        return plain(*args, **kwargs)

    return call


def noticing_training(module: torch.nn.Module, compiled: typing.Any) -> typing.Callable[..., typing.Any]:
    """The compiled call, after telling the compiler when layers were frozen or unfrozen."""
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


def unless_decoding(module: torch.nn.Module, compiled: typing.Any) -> typing.Callable[..., typing.Any]:
    """The compiled call, but the plain one where a cache of keys and values is passed."""

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if kwargs.get("past_key_values") is not None:
            return module._call_impl(*args, **kwargs)
        return compiled(*args, **kwargs)

    return call
