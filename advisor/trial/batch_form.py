"""The form of a batch, for the exported Python file: the code that reads each part."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from advisor.records import BatchForm
from advisor.step.batch import TARGET_NAMES, SplitBatch
from advisor.step.loss import LossForm, own_loss
from advisor.step.step import InferStep, OwnStep, TrainStep


def batch_form_of(step: TrainStep | InferStep, batch: Any) -> BatchForm | None:
    """The form of a batch for this step; None if no form fits."""
    if batch is None:
        return None
    if isinstance(step, OwnStep):
        return form_of_batch(batch, SplitBatch((batch,), {}))
    if isinstance(step, InferStep):
        return form_of_batch(batch, step.split_of(batch))
    call = step.call
    if call.form is LossForm.MODEL_BATCH:
        parts = call.takes == "targets" and isinstance(batch, tuple | list)
        return BatchForm(_kind(batch), (), "*batch" if parts else "batch")
    return form_of_batch(batch, call.split_of(batch)._replace(target=call.target_of(batch)), call.takes)


def with_own_loss(form: BatchForm, loss_at: str) -> BatchForm | None:
    """The form of a batch if the model computes its loss, at this place in its output; None if there is none."""
    # If a target belongs to the output's scores, a later number is only a part of the loss (see `default_loss`).
    part = form.target not in ("", "batch") and re.fullmatch(r"output\[[1-9]\d*\]", loss_at)
    return replace(form, target=loss_at) if loss_at and not part else None


def place_of_loss(output: Any) -> str:
    """The code that reads a model's own loss from its ``output``; empty if there is none."""
    loss = own_loss(output)
    if loss is None:
        return ""
    if isinstance(output, Mapping):
        return 'output["loss"]' if output.get("loss") is loss else "sum(output.values())"
    if isinstance(output, tuple | list):
        return next(f"output[{place}]" for place, part in enumerate(output) if part is loss)
    return "output" if output is loss else "output.loss"


def form_of_batch(batch: Any, split: SplitBatch, takes: str = "") -> BatchForm:
    """The form of a batch for a model that is called by ``split``; ``takes`` is a LossCall's, empty for none."""
    places = list(_places(batch, [*split.kwargs, *TARGET_NAMES]))
    target = "" if split.target is None or not takes else _target(split.target, places, takes)
    return BatchForm(_kind(batch), _inputs(split, places), target)


def _kind(batch: Any) -> str:
    if isinstance(batch, torch.Tensor):
        return "tensor"
    if not isinstance(batch, Mapping | tuple | list) or hasattr(batch, "_fields"):
        return "object"
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not all(isinstance(part, torch.Tensor) for part in parts):
        return "nested"
    return "mapping" if isinstance(batch, Mapping) else "list"


def _places(whole: Any, names: Sequence[str], text: str = "batch", depth: int = 2) -> Iterator[tuple[str, Any]]:
    """The code that reads each part of a batch; ``names`` are the attributes of objects to search."""
    yield text, whole
    if isinstance(whole, torch.Tensor) or depth == 0:
        return
    if isinstance(whole, Mapping):
        parts = [(f"{text}[{json.dumps(name, default=str)}]", part) for name, part in whole.items()]
    elif isinstance(whole, tuple | list) and not hasattr(whole, "_fields"):
        parts = [(f"{text}[{place}]", part) for place, part in enumerate(whole)]
    else:
        parts = [(f"{text}.{name}", getattr(whole, name)) for name in names if hasattr(whole, name)]
    for place, part in parts:
        yield from _places(part, names, place, depth - 1)


def _place(part: Any, places: list[tuple[str, Any]]) -> str:
    return next((text for text, other in places if other is part), "batch")


def _inputs(split: SplitBatch, places: list[tuple[str, Any]]) -> tuple[str, ...]:
    """The model's arguments: one by one, or with a star if they are a whole part of the batch."""
    for text, whole in places:
        if isinstance(whole, Mapping) and whole.keys() == split.kwargs.keys():
            return (f"**{text}",)
        is_all = isinstance(whole, tuple | list) and [*map(id, whole)] == [*map(id, split.args)]
        if is_all and len(split.args) > 1:
            return (f"*{text}",)
    named = [f"{name}={_place(part, places)}" for name, part in split.kwargs.items()]
    return (*(_place(part, places) for part in split.args), *named)


def _target(target: Any, places: list[tuple[str, Any]], takes: str) -> str:
    """The loss's arguments after the output; a target of several parts may come from several parts of the batch."""
    together = any(target is part for _, part in places) or not isinstance(target, Mapping | tuple | list)
    if takes != "targets" and together:
        return _place(target, places)
    if isinstance(target, Mapping):
        return ", ".join(f"{name}={_place(part, places)}" for name, part in target.items())
    parts = ", ".join(_place(part, places) for part in target)
    return parts if takes == "targets" else f"({parts})"
