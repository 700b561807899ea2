"""Losses: telling the two forms apart, and the loss of a workload that brings none."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.runtime.batches import tensors_of

_MODEL_NAMES = frozenset({"model", "net", "network", "module"})


def takes_model(loss: Callable[..., Any]) -> bool:
    """Whether a loss has the form ``loss(model, batch)`` rather than ``loss(output, target)``.

    It has when its first parameter is named or annotated as a model, or its second is named ``batch``.
    """
    if isinstance(loss, nn.Module):
        return False
    parameters = _parameters(loss)
    if not parameters:
        return False
    annotation = parameters[0].annotation
    is_module = annotation is nn.Module or (isinstance(annotation, type) and issubclass(annotation, nn.Module))
    named_batch = len(parameters) > 1 and parameters[1].name == "batch"
    return parameters[0].name in _MODEL_NAMES or is_module or named_batch


def _parameters(loss: Callable[..., Any]) -> list[inspect.Parameter]:
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
    if isinstance(loss, nn.Module):
        return type(loss).__name__
    return getattr(loss, "__name__", type(loss).__name__)


def default_loss(output: Any, target: Any) -> torch.Tensor:
    """The loss of a workload that brings none.

    The model's own when its output has one (Hugging Face); cross-entropy for whole-number targets; mean squared error
    for targets of the output's shape; else the mean square of the outputs, which exercises the same backward pass.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    prediction = main_output(output)
    if isinstance(target, torch.Tensor) and not target.is_floating_point() and prediction.dim() > target.dim():
        classes_last = prediction.dim() == target.dim() + 1 and prediction.shape[:-1] == target.shape
        scores = prediction.movedim(-1, 1) if classes_last and prediction.dim() > 2 else prediction
        return functional.cross_entropy(scores, target)
    if isinstance(target, torch.Tensor) and target.shape == prediction.shape:
        return functional.mse_loss(prediction, target)
    return prediction.float().square().mean()


def main_output(output: Any) -> torch.Tensor:
    """The first floating-point tensor of an output: logits rather than auxiliary heads."""
    if isinstance(output, Mapping) and "out" in output:
        return main_output(output["out"])
    for tensor in tensors_of(output):
        if tensor.is_floating_point():
            return tensor
    raise TypeError(f"the model returned {type(output).__name__}, which holds no floating-point tensor")
