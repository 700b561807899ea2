"""Losses: the two forms told apart, the number in what a loss returns, and the loss of a workload that brings none."""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.step.nested import tensors_of
from advisor.step.walk import found_in

MODEL_NAMES = frozenset({"model", "net", "network", "module"})
OUTPUT_NAMES = frozenset(
    {"output", "outputs", "out", "logits", "scores", "pred", "preds", "prediction", "predictions", "y_pred", "y_hat"}
)
LABEL_NAMES = frozenset({"target", "targets", "label", "labels", "y_true"})


class LossError(TypeError):
    """A loss that cannot be trained with: what is wrong, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} {hint}")
        self.message = message
        self.hint = hint


def takes_model(loss: Callable[..., Any]) -> bool | None:
    """Whether a loss is ``loss(model, batch)`` and not ``loss(output, target)``; None when only a try can tell.

    The first parameter decides, by its name or annotation; failing that, a second parameter that is named as labels
    are. A module is always called with output and target.
    """
    if isinstance(loss, torch.nn.Module):
        return False
    named = [parameter for parameter in parameters_of_loss(loss) if parameter.kind is not parameter.VAR_POSITIONAL][:2]
    if not named:
        return None
    first, second = named[0].name, named[1].name if len(named) > 1 else ""
    if first in MODEL_NAMES or is_module(named[0].annotation):
        return True
    return False if first in OUTPUT_NAMES or second in LABEL_NAMES else None


def may_call_model(loss: Callable[..., Any]) -> bool:
    """Whether a loss gets the model by its names, or gets something beside what it calls the batch."""
    form = takes_model(loss)
    return bool(form) or (form is None and [one.name for one in parameters_of_loss(loss)[1:2]] == ["batch"])


def takes_output_only(loss: Callable[..., Any]) -> bool:
    """Whether a loss is ``loss(output)``: the model has seen the target, or there is none.

    A second parameter with a number or a word for its default, as in ``loss(output, temperature=0.5)``, is an option.
    """
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss)
    except (TypeError, ValueError):
        return False
    second = next(itertools.islice(signature.parameters.values(), 1, None), None)
    is_option = second is not None and isinstance(second.default, float | int | str)
    return (
        is_callable_with(signature, 1) and (is_option or not is_callable_with(signature, 2)) and not takes_model(loss)
    )


def takes_output_and_batch(loss: Callable[..., Any]) -> bool:
    """Whether a loss is ``loss(output, batch)``, as its parameters' names tell: it takes the targets from the batch."""
    names = [parameter.name for parameter in parameters_of_loss(loss)[:2]]
    return names[1:] == ["batch"] and names[0] in OUTPUT_NAMES


def takes_parts(loss: Callable[..., Any]) -> bool:
    """Whether a loss takes the parts of a batch one by one: ``loss(model, inputs, targets)``, or several targets."""
    return len(_needed_by(loss)) > 2


def targets_of(loss: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the targets of a loss that needs several, as in ``loss(output, target, weight)``; else empty."""
    return tuple(_needed_by(loss)[1:]) if takes_parts(loss) and not takes_model(loss) else ()


def _needed_by(loss: Callable[..., Any]) -> list[str]:
    given = parameters_of_loss(loss.forward if isinstance(loss, torch.nn.Module) else loss)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in given if one.kind in by_place and one.default is one.empty]


def of_two(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of two arguments: one that takes the parts of a batch, or several targets, gets them one by one."""
    if not takes_parts(loss):
        return loss

    def of_parts(first: Any, *parts: Any) -> Any:
        inside = parts[0] if len(parts) == 1 else parts
        return loss(first, **inside) if isinstance(inside, Mapping) else loss(first, *inside)

    signature = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss)
    of_parts.__signature__ = signature  # type: ignore[attr-defined]
    of_parts.__name__ = describe_loss(loss)
    return of_parts


def whole_batch(batch: Any) -> Any:
    """The batch itself, as the target of a loss that reads its targets off it."""
    return batch


def is_callable_with(signature: inspect.Signature, count: int) -> bool:
    """Whether a signature allows a call with so many positional arguments and nothing else."""
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_module(annotation: Any) -> bool:
    """Whether an annotation is ``torch.nn.Module`` or a class that inherits from it."""
    return isinstance(annotation, type) and issubclass(annotation, torch.nn.Module)


def number_in(value: Any) -> torch.Tensor | None:
    """The loss in what a loss function returns; None when it holds none, or several that could be it.

    That is one number, the ``loss`` of a mapping or an object (Hugging Face), or the one in a tuple: its first element
    where that is a number, as in ``(loss, metrics)``, else the only element that is. A list of several numbers with
    gradients, such as the losses at several depths of a model, holds no loss: nothing tells which of them it is.
    """
    if isinstance(value, Mapping):
        value = value.get("loss")
    elif isinstance(value, tuple | list):
        numbers = [part for part in value if is_number(part)]
        alike = isinstance(value, list) and sum(number.requires_grad for number in numbers) > 1
        value = numbers[0] if numbers and not alike and (len(numbers) == 1 or numbers[0] is value[0]) else None
    elif not isinstance(value, torch.Tensor):
        value = getattr(value, "loss", None)
    return value if is_number(value) else None


def is_number(value: Any) -> bool:
    """Whether a value is a tensor of one element."""
    return isinstance(value, torch.Tensor) and value.numel() == 1


def returned(value: Any) -> str:
    """A description of a loss function's result that is no number."""
    if isinstance(value, torch.Tensor):
        return f"{value.numel()} numbers, not one"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}, and none of them is its `loss`"
    if isinstance(value, tuple | list) and any(map(is_number, value)):
        return f"a {type(value).__name__} with several numbers, of which any could be the loss"
    return f"{type(value).__name__}, not a tensor"


def loss_in(value: Any) -> torch.Tensor:
    """The loss in what a loss function returns. Raises LossError when it is not one number."""
    number = number_in(value)
    if number is None:
        raise LossError(
            f"the loss function returns {returned(value)}.",
            "Return one number to minimise, such as the mean or the sum of several.",
        )
    return number


def own_loss_in(output: Any) -> torch.Tensor:
    """The loss in what a model returned that was given its target: one number, or the sum of several named ones.

    Detectors of torchvision return a mapping of losses. Its numbers without a gradient are metrics. Raises LossError
    where there is none.
    """
    if number_in(output) is None and isinstance(output, Mapping):
        losses = [part for part in output.values() if is_number(part) and part.requires_grad]
        if losses:
            return torch.stack([loss.reshape(()) for loss in losses]).sum()
    return loss_in(output)


def target_name_of(loss: Callable[..., Any]) -> str:
    """The name of a loss's second parameter; empty where it has none, and where PyTorch chose it."""
    function = loss.func if isinstance(loss, functools.partial) else loss
    owner = type(function) if isinstance(function, torch.nn.Module) else function
    if str(getattr(owner, "__module__", "torch")).partition(".")[0] == "torch":
        return ""
    given = parameters_of_loss(loss.forward if isinstance(loss, torch.nn.Module) else loss)
    return given[1].name if len(given) > 1 else ""


def modules_of_loss(loss: Any) -> list[torch.nn.Module]:
    """The modules that a loss is, or reads; none that is a part of another one."""
    found = found_in(loss).modules
    parts = {id(part) for module in found for part in module.children()}
    return [module for module in found if id(module) not in parts]


def parameters_of_loss(loss: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a loss, with annotations that were written as text evaluated where they can be."""
    with contextlib.suppress(Exception):
        return list(inspect.signature(loss, eval_str=True).parameters.values())
    with contextlib.suppress(TypeError, ValueError):
        return list(inspect.signature(loss).parameters.values())
    return []


def describe_loss(loss: Callable[..., Any] | None) -> str:
    """A loss as a person reads it."""
    if loss is None:
        return "none"
    if isinstance(loss, torch.nn.Module):
        return type(loss).__name__
    return getattr(loss, "__name__", type(loss).__name__)


def default_loss(output: Any, target: Any) -> torch.Tensor:
    """The loss of a workload that brings none.

    The first of these that fits:

    - the model's own, where its output has one (Hugging Face), is one, is a mapping of several or begins with one, or
      where the model took the whole batch and one is anywhere in the output;
    - cross-entropy for whole-number targets;
    - the mean squared error for targets of the output's shape;
    - the mean square of the outputs, which exercises the same backward pass.
    """
    own = loss_of_its_own(output, whole_batch=isinstance(target, tuple | list))
    if own is not None:
        return own
    prediction = main_output(output)
    if isinstance(target, torch.Tensor) and not target.is_floating_point() and prediction.dim() > target.dim():
        classes_last = prediction.dim() == target.dim() + 1 and prediction.shape[:-1] == target.shape
        scores = prediction.movedim(-1, 1) if classes_last and prediction.dim() > 2 else prediction
        return torch.nn.functional.cross_entropy(scores, target)
    if isinstance(target, torch.Tensor) and target.shape == prediction.shape:
        return torch.nn.functional.mse_loss(prediction, target)
    return prediction.float().square().mean()


def loss_of_its_own(output: Any, *, whole_batch: bool) -> torch.Tensor | None:
    """The loss that a model has made itself, in its output; None where there is none.

    A number anywhere in a tuple counts where the model took the ``whole_batch``, else only its first part.
    """
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    numbers = list(output.values()) if isinstance(output, Mapping) else [output]
    if all(is_number(number) and number.dim() == 0 for number in numbers) and any(n.requires_grad for n in numbers):
        return own_loss_in(output)
    number = number_in(output) if isinstance(output, tuple | list) else None
    if number is None or not (whole_batch or number is output[0]):
        return None
    return number if number.requires_grad and number.dim() == 0 else None


def main_output(output: Any) -> torch.Tensor:
    """The first floating-point tensor of an output: logits rather than auxiliary heads."""
    if isinstance(output, Mapping) and "out" in output:
        return main_output(output["out"])
    for tensor in tensors_of(output):
        if tensor.is_floating_point():
            return tensor
    raise TypeError(f"the model returned {type(output).__name__}, which holds no floating-point tensor")


def loss_of_part(loss: Callable[..., Any], index: int) -> Callable[..., Any]:
    """A loss that gets one of the several parts that a batch has beside the model's inputs."""

    def of_part(output: Any, parts: Any) -> Any:
        return loss(output, parts[index])

    return of_part
