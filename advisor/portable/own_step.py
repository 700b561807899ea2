"""A step that the user wrote: run as it is, under what a plan can put around it."""

import collections.abc
import typing

import torch

from advisor.portable.contexts import grad_mode
from advisor.portable.losses import LossError, number_in, returned
from advisor.portable.plan import StepPlan
from advisor.portable.steps import InferStep


class OwnStep(InferStep):
    """A function ``step(batch)`` of the user's. Called with a batch it returns the detached loss, or the output.

    The batch is brought to the device in the layout and type that the plan says. Autocast, the attention kernel, the
    device of new tensors and the grad mode are contexts around the whole step. Autocast keeps no casts of weights: the
    step may change them between two calls of the model. Raises LossError where a training step returns no loss.
    """

    def __init__(
        self, function: typing.Callable[[typing.Any], typing.Any], model: torch.nn.Module, plan: StepPlan
    ) -> None:
        super().__init__(model, plan)
        self.function = function
        if plan.autocast != "none":
            dtype = getattr(torch, plan.autocast)
            self._autocast = torch.autocast(plan.device_type, dtype=dtype, cache_enabled=False)

    def _forward(self, batch: typing.Any) -> typing.Any:
        grad = grad_mode(self.plan.runs_under)
        with self.around_forward(), grad, self._creation(), self._attention(), self._autocast:
            result = self.function(batch)
        if self.plan.mode != "train":
            return result
        number = number_in(result)
        if number is None:
            number = number_in(as_tensors(result))
        if number is None:
            raise LossError(
                f"the step returns {returned(result)}.",
                "Return the loss: one number, by which the results of settings are compared.",
            )
        return number.detach()


def as_tensors(result: typing.Any) -> typing.Any:
    """The result of a step, with tensors in place of the Python numbers that may be its loss."""
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        return torch.tensor(float(result))
    if isinstance(result, collections.abc.Mapping):
        return {"loss": as_tensors(result["loss"])} if "loss" in result else result
    if type(result) in (list, tuple):
        return type(result)(map(as_tensors, result))
    return result
