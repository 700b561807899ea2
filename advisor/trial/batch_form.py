"""The form of a batch in a few words, by which the exported Python file is written.

``tensor``; ``pair`` of input and target, with ``pair:mapping`` and ``pair:list`` where the input is a mapping of
keywords or a list of inputs; ``parts:K``, the first K are inputs and the next the target; ``mapping:TARGET``, with
``mapping:TARGET:NAMES`` where the model takes the inputs NAMES only; ``whole``, which the model takes as it is; and
``object``, any other with a method ``to``. Further words: ``nested``, not all parts are tensors; ``output_only``,
``of_batch`` and ``targets``, the loss gets the output alone, the batch, or all parts that are no inputs.
"""

from collections.abc import Mapping
from typing import Any

import torch

from advisor.step.batch import SplitBatch
from advisor.step.step import InferStep, OwnStep, TrainStep


_WORDS = {"": ["output_only"], "target": [], "targets": ["targets"], "batch": ["of_batch"]}


def batch_form_of(step: TrainStep | InferStep, batch: Any) -> str:
    """The form of a batch of this step; empty for a step of the user's own, which takes it as it is."""
    if batch is None or isinstance(step, OwnStep):
        return ""
    if isinstance(step, InferStep):
        return form_of_batch(batch, step.split_of(batch))
    return form_of_batch(batch, step.call.split_of(batch)._replace(target=step.call.target_of(batch)), *_WORDS[step.call.takes])


def form_of_batch(batch: Any, split: SplitBatch, *words: str) -> str:
    """The form of a batch that a model is called with by ``split``; ``words`` are those about its loss."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    kind = _kind(batch, split)
    nested = not all(isinstance(part, torch.Tensor) for part in parts) or (
        kind == "whole" and isinstance(batch, Mapping)
    )
    return " ".join([kind, *(["nested"] if nested else []), *words])


def _kind(batch: Any, split: SplitBatch) -> str:
    if isinstance(batch, torch.Tensor):
        return "tensor"
    if len(split.args) == 1 and split.args[0] is batch:
        return "whole" if isinstance(batch, Mapping | tuple | list) and not hasattr(batch, "_fields") else "object"
    return _kind_of_mapping(batch, split) if isinstance(batch, Mapping) else _kind_of_parts(batch, split)


def _kind_of_mapping(batch: Mapping[Any, Any], split: SplitBatch) -> str:
    target = next((str(name) for name, value in batch.items() if value is split.target), "")
    passed = batch.keys() - ({target} - split.kwargs.keys())
    names = "" if passed == split.kwargs.keys() else ":" + ",".join(split.kwargs)
    return f"mapping:{target}{names}" if target or names else "mapping"


def _kind_of_parts(batch: Any, split: SplitBatch) -> str:
    if not isinstance(batch, tuple | list) or hasattr(batch, "_fields"):
        return "object"
    if split.kwargs:
        return "pair:mapping"
    if len(batch) == 2 and isinstance(batch[0], tuple | list) and split.args and split.args[0] is not batch[0]:
        return "pair:list"
    return "pair" if len(batch) == 2 and len(split.args) == 1 else f"parts:{len(split.args)}"
