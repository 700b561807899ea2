"""Functions of a step compiled as its plan says."""

from collections.abc import Callable
from typing import Any

import torch

from advisor.portable.compiled_module import STEPS_WITH_GRAPHS, without_graphs
from advisor.portable.plan import StepPlan


def compiled_call(call: Callable[..., Any], plan: StepPlan) -> Callable[..., Any]:
    """A function of the step, compiled as the plan says; it replays CUDA graphs in steps that do."""
    arguments = compiler_arguments(plan)
    compiled, plain_arguments = torch.compile(call, **arguments), without_graphs(arguments)
    if plain_arguments == arguments:
        return compiled
    plain = torch.compile(call, **plain_arguments)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs) if STEPS_WITH_GRAPHS[0] else plain(*args, **kwargs)

    return chosen


def compiler_arguments(plan: StepPlan) -> dict[str, Any]:
    """The keyword arguments of ``torch.compile``."""
    dynamic = None if plan.compile_dynamic == "auto" else bool(plan.compile_dynamic)
    extras = plan.compiler_options
    if not extras:
        return {"mode": plan.compiles_with, "dynamic": dynamic}
    from torch._inductor import list_mode_options

    # torch.compile takes a mode or options, not both.
    return {"options": {**list_mode_options(plan.compiles_with), **extras}, "dynamic": dynamic}
