"""Contexts that a plan puts around a step: precision, attention kernel, grad mode."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.recipe.plan import StepPlan
from advisor.step.compile import marks_steps

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# PyTorch's message where none of the permitted attention kernels can run a call.
NO_ATTENTION = ("No available kernel", "No viable backend for scaled_dot_product_attention")


class Planned:
    """A model under a plan, with the contexts of its forward pass. Each pass runs inside ``around_forward()``."""

    def __init__(self, model: torch.nn.Module, plan: StepPlan) -> None:
        self.model = model
        self.plan = plan
        self.around_forward: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._autocast = autocast_of(plan)
        self._attention = attention_of(plan)
        self._creation = creation_of(plan)
        self._marks_steps = marks_steps(plan)


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
    if not plan.create_on_device:
        return nullcontext
    if plan.compiles_with == "none":
        return lambda: torch.device(plan.device)
    return lambda: compiling_creation_on(plan.device)


@contextmanager
def compiling_creation_on(device: str) -> Iterator[None]:
    """Create tensors on a device, in code that is compiled meanwhile too."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    CustomGraphPass.register(CreationOn)
    with config.patch(pre_grad_custom_pass=CreationOn(device)), torch.device(device):
        yield


class CreationOn:
    """A compiler pass that adds a device to calls that create tensors and name none.

    PyTorch 2.11 loses the device context in much of the code that it compiles. The compiler's cache identifies the pass
    by its uuid or by its pickle.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Name the device in each call that creates a tensor."""
        from torch.utils._device import _device_constructors

        creating = _device_constructors()
        for node in graph.nodes:
            creates = node.op == "call_function" and node.target in creating
            if creates and node.kwargs.get("device") is None:
                node.update_kwarg("device", torch.device(self.device))

    def uuid(self) -> str:
        """An identifier of what the pass does."""
        return f"creation on {self.device}"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.uuid(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


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
        "caller": nullcontext,
    }
    return modes[name]()
