"""Compiling what the plan says, the model or its blocks; and seeing what is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from advisor.plan import AUTOTUNED_MATMULS, COMBO_KERNELS, StepPlan
from advisor.portable.regions import compile_blocks
from advisor.records import Value

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# Settings that are options of the compiler: their values, and the options that these stand for.
_OPTIONS: dict[str, tuple[Value, dict[str, str | bool]]] = {
    "compile.autotune": ("matmuls", AUTOTUNED_MATMULS),
    "compile.combo_kernels": (True, COMBO_KERNELS),
}


def compiled(model: nn.Module, plan: StepPlan) -> nn.Module:
    """The compiled model; with the scope ``regional`` the model itself, its blocks compiled in place.

    What is compiled ``with_loss`` is compiled where model and loss meet, in the step: :func:`compiled_call`.
    """
    if plan.freezing:
        from torch._inductor import config

        config.freezing = True
    if plan.compiles_loss:
        return model
    options = _options(plan)
    if plan.compile_scope == "regional":
        compile_blocks(model, **options)
        return model
    # Module.compile() would keep the model's identity, but leaves a bare nn.Sequential uncompiled: Dynamo skips
    # the frames of torch.nn, and only torch.compile(module) wraps them.
    return cast("nn.Module", torch.compile(model, **options))


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


def compiled_call(call: Callable[..., Any], plan: StepPlan) -> Callable[..., Any]:
    """A function of the step, compiled as the plan says."""
    return torch.compile(call, **_options(plan))


def _options(plan: StepPlan) -> dict[str, Any]:
    dynamic = None if plan.compile_dynamic == "auto" else bool(plan.compile_dynamic)
    extras = plan.compiler_options
    if not extras:
        return {"mode": plan.compiles_with, "dynamic": dynamic}
    from torch._inductor import list_mode_options

    # torch.compile takes a mode or options, not both.
    return {"options": {**list_mode_options(plan.compiles_with), **extras}, "dynamic": dynamic}
