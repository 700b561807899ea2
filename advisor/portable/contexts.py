"""The contexts in which a plan has a step run: precision, attention kernel, place of new tensors, grad mode."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.portable.compiled_module import WITHOUT_GRAPHS
from advisor.portable.plan import StepPlan

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# How PyTorch says that none of the permitted attention kernels can run a call.
NO_ATTENTION = ("No available kernel", "No viable backend for scaled_dot_product_attention")


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; then those modules train again that did before."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def creation_of(plan: StepPlan) -> Callable[[], AbstractContextManager[Any]]:
    """Return a factory of contexts that create tensors on the plan's device, if it says so."""
    return (lambda: torch.device(plan.device)) if plan.create_on_device else nullcontext


def autocast_of(plan: StepPlan) -> AbstractContextManager[Any]:
    """The context in which the plan's operators run in its lower precision."""
    if plan.autocast == "none":
        return nullcontext()
    return torch.autocast(plan.device_type, dtype=getattr(torch, plan.autocast))


def attention_of(plan: StepPlan) -> Callable[[], AbstractContextManager[Any]]:
    """Return a factory of contexts in which only the plan's attention kernel may run."""
    if plan.attention_backend == "auto":
        return nullcontext
    return lambda: only_attention(plan.attention_backend)


@contextmanager
def only_attention(name: str) -> Iterator[None]:
    """Permit one attention kernel. Raises RuntimeError that says so when it cannot run a call."""
    try:
        with sdpa_kernel(ATTENTION[name]):
            yield
    except RuntimeError as error:
        if not any(text in str(error) for text in NO_ATTENTION):
            raise
        raise RuntimeError(
            f"the {name} attention kernel cannot run this model's attention: its type, head size, mask or dropout does "
            "not suit it, or the device does not"
        ) from error


def grad_mode(name: str) -> AbstractContextManager[Any]:
    """The context of a grad mode by its name in the plan."""
    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
    }
    return modes[name]()


def marks_steps(plan: StepPlan) -> bool:
    """Whether a step tells the compiler's CUDA graphs that it begins, and what they return has to be copied."""
    return plan.compile_mode in WITHOUT_GRAPHS and plan.device_type == "cuda"
