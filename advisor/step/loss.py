"""Losses: their four forms, the form by a signature, and the loss in the result of a loss function."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import torch

from advisor.step.batch import ForwardInputs, splitter, tensors_of

MODEL_NAMES = frozenset({"model", "net", "network", "module", "m"})
_OUTPUT_NAMES = frozenset(
    {"output", "outputs", "out", "logits", "scores", "pred", "preds", "prediction", "predictions", "y_pred", "y_hat"}
)
_LABEL_NAMES = frozenset({"target", "targets", "label", "labels", "y_true"})
FORMS = """\
A loss has one of four forms:
  loss(model, batch)    def loss(model, batch): return F.mse_loss(model(batch["x"]), batch["y"])
  loss(output, target)  loss = torch.nn.CrossEntropyLoss()
  the model's own       no loss: model(batch) returns a number, or an object with .loss
  step(batch)           a step of your own: Workload(step=step, model=model, data=loader)"""


class LossForm(StrEnum):
    """The four forms of a loss."""

    MODEL_BATCH = "model_batch"
    OUTPUT_TARGET = "output_target"
    OWN = "own"
    STEP = "step"

    @property
    def call(self) -> str:
        """One of the first two forms as a call: ``loss(model, batch)``, for example."""
        return f"loss({self.replace('_', ', ')})"


class LossError(TypeError):
    """A loss cannot be used for training. The message says what is wrong and what to do."""

    def __init__(self, message: str, hint: str = FORMS) -> None:
        super().__init__(f"{message} {hint}")
        self.message = message
        self.hint = hint


def form_of(loss: Callable[..., Any] | None) -> LossForm | None:
    """The form of a loss by its signature; None if the signature does not show it.

    The name or annotation of the first parameter decides, or else the name of a second parameter for labels. Modules,
    and losses with one parameter, get output and target. Raises LossError for ``loss(target, output)``.
    """
    if loss is None:
        return LossForm.OWN
    named = [one for one in parameters_of_loss(loss) if one.kind is not one.VAR_POSITIONAL][:2]
    first, second = named[0] if named else None, named[1].name if len(named) > 1 else ""
    if first and first.name in _LABEL_NAMES and second in _OUTPUT_NAMES:
        raise LossError(f"the loss takes {first.name} first: pass `lambda output, target: loss(target, output)`.")
    if isinstance(loss, torch.nn.Module):
        return LossForm.OUTPUT_TARGET
    if first is None:
        return None
    is_model = isinstance(first.annotation, type) and issubclass(first.annotation, torch.nn.Module)
    if is_model or first.name in MODEL_NAMES:
        return LossForm.MODEL_BATCH
    of_output = first.name in _OUTPUT_NAMES or second in _LABEL_NAMES or takes_output_only(loss)
    return LossForm.OUTPUT_TARGET if of_output else None


class LossCall:
    """Calls a model and its loss on a batch, in a known form.

    A loss of an output also gets the parts of the batch that are not the model's inputs: one target, several targets as
    separate arguments, or the whole batch if its second parameter is named ``batch``. PyTorch's own losses get only the
    first target. ``takes`` is ``target``, ``targets``, ``batch``, or empty for a loss of only the output.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any] | None, form: LossForm | None = None) -> None:
        self.model = model
        self.loss_function: Callable[..., Any] = default_loss if loss is None else loss
        self.form = form or form_of(loss) or LossForm.OUTPUT_TARGET
        function = loss.func if isinstance(loss, functools.partial) else loss
        owner = type(function) if isinstance(function, torch.nn.Module) else function
        # PyTorch's own losses take one target: the first of several.
        self._of_torch = loss is None or str(getattr(owner, "__module__", "torch")).partition(".")[0] == "torch"
        self._names = names = _names_of(self.loss_function)[1:]
        alone = takes_output_only(self.loss_function)
        self.takes = "batch" if names == ["batch"] else "targets" if len(names) > 1 else "" if alone else "target"
        inputs = ForwardInputs(model)
        takes_labels = inputs.count() != inputs.count(with_labels=True)
        with_target = bool(self.takes) and not (loss is None and takes_labels)
        # The model gets the labels unless a separate loss gets them (Hugging Face models take labels).
        apart = with_target and loss is not None and self.takes != "batch"
        given = parameters_of_loss(self.loss_function)
        name = given[1].name if len(given) > 1 else ""
        self.split_of = splitter(model, with_target=with_target, with_labels=not apart, target_name=name)

    def forward(self, batch: Any) -> Any:
        """The model's output; or the loss, if the loss function calls the model itself."""
        if self.form is LossForm.MODEL_BATCH:
            return self._of_model(batch)
        split = self.split_of(batch)
        return self.model(*split.args, **split.kwargs)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss for the result of ``forward``. Raises LossError if the loss is not one number."""
        return loss_in(output if self.form is LossForm.MODEL_BATCH else self.of_output(output, self.target_of(batch)))

    def compiled(self, compile_call: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Any], Any]:
        """A function of a batch that runs the forward pass and the loss as one compiled call."""
        if self.form is LossForm.MODEL_BATCH:
            return compile_call(self._of_model)
        call = compile_call(lambda args, kwargs, target: self.of_output(self.model(*args, **kwargs), target))
        return lambda batch: call(*self.split_of(batch)._replace(target=self.target_of(batch)))

    def target_of(self, batch: Any) -> Any:
        """The target of a batch, in the form for the loss."""
        if self.takes == "batch":
            return batch
        if self.takes == "targets" and isinstance(batch, Mapping) and batch.keys() >= set(self._names):
            return {name: batch[name] for name in self._names}
        target = self.split_of(batch).target
        # If the model takes the whole batch, the target is the batch itself, and is not cut to its first part.
        several = isinstance(target, tuple) and not hasattr(target, "_fields") and target is not batch
        return target[0] if several and self._of_torch and self.takes == "target" else target

    def _of_model(self, batch: Any) -> Any:
        if self.takes == "targets" and isinstance(batch, list | tuple):  # loss(model, inputs, targets)
            return self.loss_function(self.model, *batch)
        return self.loss_function(self.model, batch)

    def of_output(self, output: Any, target: Any) -> Any:
        """Call the loss function with an output and its target. Return its result unchanged."""
        if self.takes != "targets":
            return self.loss_function(output, target) if self.takes else self.loss_function(output)
        names = self._names
        if isinstance(target, Mapping) and target.keys() >= set(names):
            return self.loss_function(output, **{name: target[name] for name in names})
        if isinstance(target, tuple | list) and len(target) == len(names):
            return self.loss_function(output, *target)
        raise LossError(
            f"the loss needs {' and '.join(names)} besides the output, but a batch has no such parts.",
            f"Give batches (inputs, {', '.join(names)}), or dicts with these keys.",
        )


def parameters_of_loss(loss: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a loss. Annotations that are texts are evaluated if possible."""
    function = loss.forward if isinstance(loss, torch.nn.Module) else loss
    for eval_str in (True, False):
        with contextlib.suppress(Exception):  # an annotation may fail, and a function may lack a signature
            return list(inspect.signature(function, eval_str=eval_str).parameters.values())
    return []


def _names_of(loss: Callable[..., Any]) -> list[str]:
    """The names of a loss's required arguments."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters_of_loss(loss) if one.kind in by_place and one.default is one.empty]


def takes_output_only(loss: Callable[..., Any]) -> bool:
    """Whether a loss is ``loss(output)``. A second parameter whose default is a number or a text is only an option."""
    given = parameters_of_loss(loss)
    alone = len(_names_of(loss)) <= 1 and bool(given) and not any(one.kind is one.VAR_POSITIONAL for one in given)
    return alone and (len(given) == 1 or isinstance(given[1].default, float | int | str))


def is_callable_with(signature: inspect.Signature, count: int) -> bool:
    """Whether a signature allows a call with exactly this number of positional arguments."""
    with contextlib.suppress(TypeError):
        signature.bind(*[None] * count)
        return True
    return False


def describe_loss(loss: Callable[..., Any] | None) -> str:
    """The name of a loss, for people."""
    return "none" if loss is None else getattr(loss, "__name__", type(loss).__name__)


def is_number(value: Any) -> bool:
    """Whether a value is a tensor of one element."""
    return isinstance(value, torch.Tensor) and value.numel() == 1


def number_in(value: Any) -> torch.Tensor | None:
    """The loss in the result of a loss function; None if there is none, or if it is ambiguous.

    It is the result itself if this is one number; ``loss`` of a mapping or an object (Hugging Face); in a tuple, the
    first element if it is a number, else the only number. Several numbers with gradients in a list are ambiguous.
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


def returned(value: Any) -> str:
    """A description of a loss function's result that is not one number."""
    if isinstance(value, torch.Tensor):
        return f"{value.numel()} numbers, not one"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}, but without a number `loss`"
    if isinstance(value, tuple | list) and any(map(is_number, value)):
        return f"a {type(value).__name__} with several numbers: any of them could be the loss"
    return f"{type(value).__name__}, not a tensor"


def loss_in(value: Any) -> torch.Tensor:
    """The loss in the result of a loss function. Raises LossError if it is not one number."""
    number = number_in(value)
    if number is None:
        raise LossError(
            f"the loss function returns {returned(value)}.",
            f"Return one number to minimise (for several, their mean or sum).\n{FORMS}",
        )
    return number


def default_loss(output: Any, target: Any = None) -> torch.Tensor:
    """The loss for a workload that has none. It is the first of these that fits:

    - the model's own loss: the output has, is or begins with a loss, or is a mapping of losses; or the model takes the
      target, and a loss is anywhere in the output;
    - cross-entropy for integer targets;
    - the mean squared error for targets of the output's shape;
    - the mean square of the outputs, which exercises the same backward pass.
    """
    own = own_loss(output)
    apart = isinstance(target, torch.Tensor) and isinstance(output, tuple | list) and own is not output[0]
    if own is not None and not apart:  # with a separate target, a number beside scores is only a part of the loss
        return own
    prediction = main_output(output)
    if isinstance(target, torch.Tensor) and not target.is_floating_point() and prediction.dim() > target.dim():
        classes_last = prediction.dim() == target.dim() + 1 and prediction.shape[:-1] == target.shape
        scores = prediction.movedim(-1, 1) if classes_last and prediction.dim() > 2 else prediction
        return torch.nn.functional.cross_entropy(scores, target)
    if isinstance(target, torch.Tensor) and target.shape == prediction.shape:
        return torch.nn.functional.mse_loss(prediction, target)
    return prediction.float().square().mean()


def own_loss(output: Any) -> torch.Tensor | None:
    """The model's own loss in its output: a number, ``loss``, or the sum of a mapping of losses; None without one."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    if isinstance(output, Mapping):
        losses = [part.reshape(()) for part in output.values() if is_number(part) and part.requires_grad]
        return torch.stack(losses).sum() if losses and all(map(is_number, output.values())) else None
    number = number_in(output)
    return number if number is not None and number.requires_grad and number.dim() == 0 else None


def main_output(output: Any) -> torch.Tensor:
    """The first floating-point tensor of an output: logits rather than auxiliary heads."""
    if isinstance(output, Mapping) and "out" in output:
        return main_output(output["out"])
    for tensor in tensors_of(output):
        if tensor.is_floating_point():
            return tensor
    raise TypeError(f"the model returned {type(output).__name__}, which holds no floating-point tensor")
