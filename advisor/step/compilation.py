"""Compiles the model or its blocks, as the plan says; and tells whether a model is compiled."""

import copy
import gc
import inspect
from typing import Any

import torch
from torch import nn

from advisor.recipe.plan import AUTOTUNED_MATMULS, COMBO_KERNELS, StepPlan
from advisor.records import Value
from advisor.step.blocks import repeated_blocks
from advisor.step.compiled_module import compile_in_place
from advisor.step.contexts import compiler_arguments
from advisor.step.regions import compile_blocks

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# Settings that are options of the compiler: their values, and the options that these stand for.
_OPTIONS: dict[str, tuple[Value, dict[str, str | bool]]] = {
    "compile.autotune": ("matmuls", AUTOTUNED_MATMULS),
    "compile.combo_kernels": (True, COMBO_KERNELS),
}

# While code is compiled, collections start after this many times the usual number of new objects. Unitless.
_RARER = 100


class Models(nn.ModuleList):
    """The models that a step of the user's own works with, as one: each is called by itself."""


def compiled(model: nn.Module, plan: StepPlan) -> nn.Module:
    """The model, compiled in place; with the scope ``regional`` its blocks are.

    What is compiled ``with_loss`` is compiled where model and loss meet, in the step: ``step/contexts.py``.
    """
    if plan.freezing:
        from torch._inductor import config

        config.freezing = True
    if plan.compiles_loss:
        return model
    if isinstance(model, Models):
        for part in model:
            compiled(part, plan)
        return model
    options = compiler_arguments(plan)
    if plan.compile_scope == "regional":
        if repeated_blocks(model):
            compile_blocks(model, **options)
        return model
    compile_in_place(model, **options)
    if plan.freezing:
        model.register_load_state_dict_post_hook(_forget_constants)
    return model


def collect_rarely_while_compiling() -> None:
    """Have Python's garbage collector start a hundredth as often while PyTorch compiles, from now on in this process.

    The compiler makes millions of objects that live until it has ended, and each full collection visits all of them.
    On an H100's host the first step of a compiled Swin-T took 80 s without collections and 86 s with them, that of an
    EfficientNet-B0 92 and 104 s (tests/gpu/RESULTS.md).
    """
    from torch._dynamo.callback import callback_handler

    if _COLLECTIONS.rarer not in callback_handler.start_callbacks:  # torch.compiler.reset() forgets it
        callback_handler.register_start_callback(_COLLECTIONS.rarer)
        callback_handler.register_end_callback(_COLLECTIONS.as_before)


class _Collections:
    """Changes how often collections start, and changes it back."""

    def __init__(self) -> None:
        self.usual = gc.get_threshold()

    def rarer(self, *_: object) -> None:
        self.usual = gc.get_threshold()
        gc.set_threshold(_RARER * self.usual[0], *self.usual[1:])

    def as_before(self, *_: object) -> None:
        gc.set_threshold(*self.usual)


_COLLECTIONS = _Collections()


def _forget_constants(*_: object) -> None:
    """Have everything compiled anew: the weights that were loaded are constants of the code."""
    torch.compiler.reset()


def is_compiled(model: nn.Module) -> bool:
    """Whether calling a model runs compiled code."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def uncompiled(model: nn.Module) -> nn.Module:
    """A model as it is written, beside the compiled one: both share all parts."""
    return copy.copy(getattr(model, "_orig_mod", model)) if is_compiled(model) else model


def compiled_as(model: nn.Module) -> dict[str, Value] | None:
    """The settings that compile a model as its owner has compiled it as a whole.

    Empty for a model that is not compiled, None where no setting says how: another backend, or options of its own.
    """
    made: Any = model if hasattr(model, "_orig_mod") else getattr(model, "_compiled_call_impl", None)
    if made is None:
        return {}
    from torch._inductor import config, list_mode_options

    chosen, usual = made.get_compiler_config(), config.get_config_copy()
    if chosen is None:
        return None
    changed = {name: value for name, value in chosen.items() if value != usual.get(name)}
    named: dict[str, Value] = {}
    for key, (setting, options) in _OPTIONS.items():
        differing = {name: value for name, value in options.items() if value != usual.get(name)}
        if differing and differing.items() <= changed.items():
            named[key] = setting
            changed = {name: value for name, value in changed.items() if name not in differing}
    mode = next((mode for mode in COMPILE_MODES if list_mode_options(mode) == changed), None)
    if mode is None:
        return None
    # The context that compiles; of a model that was compiled in place only its method knows it.
    context = inspect.getclosurevars(made.get_compiler_config).nonlocals.get("self")
    dynamic = getattr(context, "_dynamic", None)
    return {"compile.mode": mode, **named} | ({} if dynamic is None else {"compile.dynamic": bool(dynamic)})


def as_written(model: nn.Module) -> nn.Module:
    """The model as it was before it was compiled as a whole; one that was compiled in place is that from now on."""
    written: nn.Module = getattr(model, "_orig_mod", model)
    if getattr(written, "_compiled_call_impl", None) is not None:
        written._compiled_call_impl = None
    return written


def accept_wrapped_names(_: nn.Module, loaded: dict[str, Any], prefix: str, *__: object) -> None:
    """A hook that removes the prefix of torch.compile's wrapper from the names of a state dict before it is loaded."""
    wrapped = f"{prefix}_orig_mod."
    for name in [name for name in loaded if name.startswith(wrapped)]:
        loaded[prefix + name.removeprefix(wrapped)] = loaded.pop(name)
