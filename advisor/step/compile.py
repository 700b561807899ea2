"""torch.compile as the plan asks for it: the model in place, its blocks, its pointwise operations, or a call."""

import copy
import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from advisor.inlined.blocks import blocks_to_compile, repeated_blocks
from advisor.recipe.plan import StepPlan
from advisor.records import Value

_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# PyTorch from this version on notices which parameters are trained: https://github.com/pytorch/pytorch/pull/177158
_NOTICES_TRAINING = "2.12"
# While code is compiled, collections start after this many times the usual number of new objects. Unitless.
_RARER = 100


class Models(nn.ModuleList):
    """The models that a step of the user's own works with, as one: each is called by itself."""


def compile_model(model: nn.Module, plan: StepPlan) -> None:
    """Compile a model as the plan says, where it is: it keeps its identity and the names in its state dict.

    With the scope ``regional`` the blocks that it repeats are compiled, and those that are alike share their code. With
    ``with_loss`` only flags are set: the step has model and loss compiled as one (:func:`compiled_call`).
    """
    if plan.compiles_with == "none":
        return
    prepare_compilations()
    dynamo: Any = torch._dynamo.config
    dynamo.use_numpy_random_stream = True  # else compiled code takes NumPy's random numbers from PyTorch
    if plan.freezing:
        torch._inductor.config.freezing = True
    units = [] if plan.compiles_loss else _units_of(model, plan)
    # Blocks of one class share a cache, and those of other shapes each need a place in it.
    dynamo.recompile_limit = max(dynamo.recompile_limit, 2 * len(units))
    for unit in units:
        if plan.freezing:
            # The weights that were loaded are constants of the code.
            unit.register_load_state_dict_post_hook(lambda *_: torch.compiler.reset())
        if plan.strategy == "fully_shard":  # its hooks gather the parameters, and would break up the compiler's graph
            unit.forward = compiled_call(unit.forward, unit, **compiler_arguments(plan))
        else:
            compile_in_place(unit, **compiler_arguments(plan))


def _units_of(model: nn.Module, plan: StepPlan) -> list[nn.Module]:
    """The modules to compile: the model, its blocks, or the blocks that ``fully_shard`` gathers one at a time.

    For DistributedDataParallel it is the model inside; for a list or a dict of modules, its items.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return _units_of(model.module, plan)
    if type(model) in (Models, nn.ModuleList, nn.ModuleDict):
        return [unit for part in model.children() for unit in _units_of(part, plan)]
    if plan.compile_scope == "regional":
        return blocks_to_compile(model)
    if plan.strategy == "fully_shard" and plan.shard_unit == "blocks":
        return [block for group in repeated_blocks(model) for _, block in group] or [model]
    return [model]


def compile_in_place(module: nn.Module, **options: Any) -> None:
    """Compile what calling a module runs; ``options`` are those of torch.compile. A copy of it is not compiled.

    A model that generates text decodes uncompiled: its cache grows with each token, and each size would be compiled.
    """
    eager: Any = module._call_impl

    def run(*args: Any, **kwargs: Any) -> Any:  # PyTorch 2.11 compiles a bare Sequential only where a function calls it
        return eager(*args, **kwargs)

    compiled = compiled_call(run, module, **options)

    @functools.wraps(compiled)
    def unless_decoding(*args: Any, **kwargs: Any) -> Any:
        return (compiled if kwargs.get("past_key_values") is None else eager)(*args, **kwargs)

    module._compiled_call_impl = unless_decoding if hasattr(module, "generate") else compiled


def call_through(module: nn.Module, call: Callable[[Any], Any]) -> None:
    """Have a call of a module be ``call((run, args, kwargs))``, where ``run(*args, **kwargs)`` is the call before."""
    run: Any = module._compiled_call_impl or module._call_impl
    module._compiled_call_impl = lambda *args, **kwargs: call((run, args, kwargs))


def compiled_call(call: Callable[..., Any], model: nn.Module, **options: Any) -> Callable[..., Any]:
    """Return a function that calls the model, such as one of model and loss, compiled with options of torch.compile.

    PyTorch before 2.12 has to be told of layers that were frozen or unfrozen since the last call: its compiled code
    takes the tensors of a dictionary that nobody changed for unchanged, also where ``requires_grad`` was switched
    (https://github.com/pytorch/pytorch/issues/139476). Adding a name and removing it changes each one.
    """
    compiled: Callable[..., Any] = torch.compile(call, **options)
    if torch.__version__ >= _NOTICES_TRAINING:
        return compiled
    parameters = list(model.parameters())
    trained = [parameter.requires_grad for parameter in parameters]

    @functools.wraps(compiled)
    def noticing(*args: Any, **kwargs: Any) -> Any:
        now = [parameter.requires_grad for parameter in parameters]
        if now != trained:
            trained[:] = now
            for part in model.modules():
                part._parameters["_"] = None
                del part._parameters["_"]
        return compiled(*args, **kwargs)

    return noticing


def compiler_arguments(plan: StepPlan) -> dict[str, Any]:
    """Return the keyword arguments of ``torch.compile``."""
    dynamic = False if plan.few_shapes else None
    if plan.compile_scope == "pointwise":
        from advisor.inlined.pointwise import pointwise_only

        return {"backend": pointwise_only, "dynamic": dynamic}
    if plan.combo_kernels:
        return {"options": {"combo_kernels": True}, "dynamic": dynamic}
    return {"mode": plan.compiles_with, "dynamic": dynamic}


def prepare_compilations() -> None:
    """Have Python's garbage collector start a hundredth as often while PyTorch compiles, from now on in this process.

    The compiler makes millions of objects that live until it has ended, and each full collection visits all of them.
    The first step of a compiled Swin-T took 80 s, and 86 s with usual collections (H100, tests/gpu/RESULTS.md).

    Code that is compiled again, such as for another number, is not read from AOTAutograd's cache: in PyTorch 2.14 such
    code may have the number as a constant that nothing checks.
    """
    from torch._dynamo.callback import callback_handler
    from torch._functorch import config

    (first, *others), cached = gc.get_threshold(), config.enable_autograd_cache

    @callback_handler.register_start_callback
    def start(*compiled: Any) -> None:  # told since PyTorch 2.8 only
        gc.set_threshold(_RARER * first, *others)
        config.enable_autograd_cache = cached and all(one.compile_id.endswith("/0") for one in compiled)

    @callback_handler.register_end_callback
    def end(*_: Any) -> None:
        gc.set_threshold(first, *others)
        config.enable_autograd_cache = cached


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a wrapper for several GPUs; else the model itself."""
    is_wrapper = isinstance(model, nn.parallel.DataParallel | nn.parallel.DistributedDataParallel)
    return cast("nn.Module", model.module) if is_wrapper else model


def as_prepared(model: nn.Module) -> nn.Module:
    """The model inside all wrappers that a loop may put around it: of torch.compile, several GPUs, and Fabric."""
    inner = unwrapped(getattr(model, "_orig_mod", model))
    inner = getattr(inner, "_original_module", inner)  # of Fabric's wrapper
    return model if inner is model else as_prepared(inner)


def is_compiled(model: nn.Module) -> bool:
    """Whether calling a model runs compiled code."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def uncompiled(model: nn.Module) -> nn.Module:
    """A copy of a model that runs uncompiled. It shares all submodules and weights with the compiled one."""
    return copy.copy(getattr(model, "_orig_mod", model)) if is_compiled(model) else model


def compiled_as(model: nn.Module) -> dict[str, Value] | None:
    """The settings that compile a whole model in the way its owner did.

    Empty for a model that is not compiled; None where no setting says how it was: another backend, options, dynamic.
    """
    made: Any = model if hasattr(model, "_orig_mod") else getattr(model, "_compiled_call_impl", None)
    if made is None:
        return {}
    from torch._inductor import config, list_mode_options

    chosen, usual = made.get_compiler_config(), config.get_config_copy()
    if chosen is None:
        return None
    changed = {name: value for name, value in chosen.items() if value != usual.get(name)}
    mode = next((mode for mode in _MODES if list_mode_options(mode) == changed), None)
    # The context that compiles; of a model that was compiled in place only its method knows it.
    context = inspect.getclosurevars(made.get_compiler_config).nonlocals.get("self")
    if mode is None or getattr(context, "_dynamic", None) is not None:
        return None
    return {"compile.mode": mode}


def as_written(model: nn.Module) -> nn.Module:
    """The model that was compiled as a whole, without its compiled form, which one compiled in place loses."""
    written: nn.Module = getattr(model, "_orig_mod", model)
    written._compiled_call_impl = None
    return written


def accept_wrapped_names(_: nn.Module, loaded: dict[str, Any], prefix: str, *__: object) -> None:
    """A hook that removes the prefix of torch.compile's wrapper from the names of a state dict before it is loaded."""
    wrapped = f"{prefix}_orig_mod."
    for name in [name for name in loaded if name.startswith(wrapped)]:
        loaded[prefix + name.removeprefix(wrapped)] = loaded.pop(name)
