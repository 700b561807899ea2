"""The step of a loop, as its plan asks for it. The steps are in ``step/``, for exported files contain them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.errors import RefusedError, UsageError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.compile import collect_rarely_while_compiling, compile_model
from advisor.step.contexts import grad_mode
from advisor.step.graphed import GraphedStep
from advisor.step.graphed_own_step import GraphedOwnStep
from advisor.step.losses import LossError, is_number, number_in, returned
from advisor.step.nested import tensors_of
from advisor.step.optimizer_steps import compiled_step, make_capturable
from advisor.step.steps import InferStep, OwnStep, TrainStep, mover_of
from advisor.step.together import optimizers_in

__all__ = [
    "GraphedOwnStep",
    "GraphedStep",
    "InferStep",
    "OwnStep",
    "Step",
    "TrainStep",
    "finish_components",
    "grad_mode",
    "make_step",
    "mover_of",
]

Step = Callable[[Any], torch.Tensor]


def finish_components(components: Components) -> None:
    """Finish the objects as the plan says: compile the model, make the optimizer capturable."""
    plan = components.plan
    if plan.compiles_with != "none":
        if plan.attention_backend != "auto":
            tell_attention_apart()
        collect_rarely_while_compiling()
        compile_model(components.model, plan)
    settle_optimizers(components)


def settle_optimizers(components: Components) -> None:
    """Make the optimizers capturable where the plan compiles or captures their step: then they need no host."""
    plan = components.plan
    if plan.compile_optimizer or (plan.cuda_graph and plan.mode is Mode.TRAIN):
        for optimizer in optimizers_in(components.optimizer):
            make_capturable(optimizer, torch.device(plan.device))


def tell_attention_apart() -> None:
    """Switch off the one cache of the compiler, for this process, that does not tell attention kernels apart.

    Its keys leave out the permitted kernels, so a graph that was traced with another one would be taken from the disk
    (pytorch/pytorch#186458). The cache of generated code, which takes most of the time, stays on.
    """
    import torch._functorch.config

    torch._functorch.config.enable_autograd_cache = False


def make_step(
    components: Components, loss: Callable[..., Any] | None, *, evaluates: bool = False
) -> TrainStep | InferStep | GraphedStep:
    """The step that the plan asks for. A step called with a batch runs once and returns the detached loss or output.

    ``evaluates``: for inference, the step puts the model into evaluation mode while it runs. Raises UsageError for a
    captured step on another device than CUDA. A step of the user's own that cannot be captured raises RefusedError when
    it is called.
    """
    plan = components.plan
    step: TrainStep | InferStep
    if components.own_step is not None:
        own = MeasuredOwnStep(components.own_step, components.model, plan)
        return MeasuredGraphedOwnStep(own, refuse=raise_refusal) if captures_own(own) else own
    if plan.mode is Mode.TRAIN:
        optimizer = components.optimizer
        update = compiled_step(optimizer, torch.device(plan.device)) if plan.compile_optimizer else None
        step = TrainStep(components.model, optimizer, loss, plan, update)
    else:
        step = InferStep(components.model, plan, with_target=loss is not None, evaluates=evaluates)
    if plan.cuda_graph and step.device.type != "cuda":
        raise UsageError(
            f"step.cuda_graph needs a CUDA GPU, and the model is on the device {step.device}.", "Leave it out."
        )
    return GraphedStep(step) if plan.cuda_graph else step


class MeasuredOwnStep(OwnStep):
    """A step of the user's own that returns its detached loss in training, by which results are compared.

    Raises LossError where the step returns none.
    """

    def __call__(self, batch: Any) -> Any:
        return measured(super().__call__(batch), self.plan)


class MeasuredGraphedOwnStep(GraphedOwnStep):
    """A captured step of the user's own that returns the detached loss in training."""

    def __call__(self, batch: Any) -> Any:
        return measured(super().__call__(batch), self.plan)


def measured(result: Any, plan: StepPlan) -> Any:
    """The loss in what a step of the user's own returned, or the sum of several; the output where it does not train."""
    if plan.mode != Mode.TRAIN:
        return result
    number = number_in(result)
    if number is None:
        number = number_in(as_tensors(result))
    if number is not None:
        return number.detach()
    several = [part.detach().reshape(()) for part in tensors_of(result) if is_number(part)]
    if not several:
        raise LossError(
            f"the step returns {returned(result)}.",
            "Return the loss, or several as tensors: the results of settings are compared by their sum.",
        )
    return torch.stack([part.to(several[0].device) for part in several]).sum()


def as_tensors(result: Any) -> Any:
    """The result of a step, with tensors in place of the Python numbers that may be its loss."""
    if isinstance(result, int | float) and not isinstance(result, bool):
        return torch.tensor(float(result))
    if isinstance(result, Mapping):
        return {"loss": as_tensors(result["loss"])} if "loss" in result else result
    return type(result)(map(as_tensors, result)) if type(result) in (list, tuple) else result


def captures_own(step: OwnStep) -> bool:
    """Whether the plan captures a step of the user's own. It has no loss that could stay outside the graph."""
    return step.plan.cuda_graph is True and step.device.type == "cuda"


# Eager steps in a row after which a step that was never captured is not expected to be. A count.
_STEPS_THAT_TELL = 12


def refuse_if_never_captured(step: Step) -> None:
    """Raise RefusedError, with what was in the way, for a step that should have been captured by now.

    One of the user's own says so by itself.
    """
    if not isinstance(step, GraphedStep) or isinstance(step, GraphedOwnStep) or step.captured:
        return
    if step.patience.eager >= _STEPS_THAT_TELL:
        raise_refusal(step.patience.reason)


def raise_refusal(reason: str) -> None:
    """Raise RefusedError for a step that cannot be captured in a CUDA graph."""
    raise RefusedError(f"the step cannot be captured in a CUDA graph: {reason}.")
