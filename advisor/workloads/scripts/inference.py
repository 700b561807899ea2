"""The workload of a script that only predicts: its model, and what it is called with."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from advisor.step.batch import map_tensors, splitter, tensors_of
from advisor.workloads.hubs.contract import Adapted
from advisor.workloads.hubs.huggingface import Generate
from advisor.workloads.scripts.found import NoLoopError
from advisor.workloads.scripts.seen import GenerateCall, ModelCall, Seen, inputs_by_name, same_values


def inference_of(seen: Seen) -> Adapted:
    """The model of a script that updates nothing, on its loader, or else on the inputs of its last call."""
    if seen.goes_backward:
        raise NoLoopError("gradients are computed, and no optimizer of torch.optim makes an update with them in a loop")
    calls = [call for call in seen.calls if call.module in seen.models]
    if not calls:
        raise NoLoopError("no optimizer made an update, and no model was called")
    if seen.generates is not None and seen.generates.inputs:
        return _generation(seen.generates, seen)
    batch = seen.batch
    call = None if batch is None else next((one for one in reversed(calls) if _is_called_with(one, batch)), None)
    data, notes = seen.loader, _notes_on_inference(seen, calls, of_loader=call is not None)
    if call is None:
        call = calls[-1]
        data = batch = _inputs_alone(call, seen)
    model = call.module.eval()
    if any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # autograd works with what was not made in inference mode
    current = {**call.current, "infer.grad": call.gradients, **_half_precision(call, batch)}
    return Adapted(model=model, data=data, mode="infer", current=current, notes=notes)


def _generation(call: GenerateCall, seen: Seen) -> Adapted:
    """The text generation of a script, on its loader, or on the inputs of its last call."""
    of_loader = isinstance(seen.batch, Mapping) and same_values(dict(seen.batch), call.inputs)
    given = "the batches of its loader" if of_loader else "the inputs of its last call"
    return Adapted(
        model=call.model.eval(),
        data=seen.loader if of_loader else [map_tensors(_copied, call.inputs)],
        mode="infer",
        step=Generate(call.model, call.options),
        notes=[f"the script's generate() on {given}; nothing was updated, so this is inference"],
    )


def _notes_on_inference(seen: Seen, calls: list[ModelCall], *, of_loader: bool) -> list[str]:
    """Notes on what of a script that updates nothing is measured, and on what is left out."""
    inputs = "batches of its loader" if of_loader else "inputs of its last call, without the making of these inputs"
    notes = [f"the script's model on the {inputs}; nothing was updated, so this is inference"]
    if of_loader and len(calls) > 1:
        notes.append("the script calls its models several times for a batch; the call with the batch is measured")
    if seen.goes_on:
        notes.append("the script was left while it went on predicting: if it trains later, let it come to that sooner")
    return notes


def _inputs_alone(call: ModelCall, seen: Seen) -> Any:
    """The inputs of a call as a batch. Raises NoLoopError for several models, or if a call may change the inputs."""
    if len(seen.models) > 1:
        raise NoLoopError("no optimizer made an update, and none of several models was called with a loader's batch")
    named = inputs_by_name(call.module, *map_tensors(_copied, (call.args, call.kwargs)))
    if not all(map(_is_data, named.values())):
        raise NoLoopError("no optimizer made an update, and the model was called with something else than a batch")
    alone = len(named) == 1 and isinstance(next(iter(named.values())), torch.Tensor)
    return next(iter(named.values())) if alone else named


def _is_called_with(call: ModelCall, batch: Any) -> bool:
    """Whether a model's arguments are a batch, or the batch converted to a smaller type."""
    split = splitter(call.module, with_target=False)(batch)
    pairs = (split.args, call.args), (split.kwargs, call.kwargs)
    return all(same_values(one, other) or same_values(other, one) for one, other in pairs)


def _half_precision(call: ModelCall, batch: Any) -> dict[str, Any]:
    """The setting of a script that converts its batches to the type of a model in half precision."""
    types = {parameter.dtype for parameter in call.module.parameters() if parameter.is_floating_point()}
    floats = {tensor.dtype for tensor in tensors_of(batch) if tensor.is_floating_point()}
    if len(types) != 1 or types == floats or not types <= {torch.bfloat16, torch.float16}:
        return {}
    return {"precision.weights": str(types.pop()).removeprefix("torch.")}


def _is_data(value: Any) -> bool:
    """Whether a value consists of tensors and plain values, which no call changes, unlike a cache."""
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_data, value))
    return value is None or isinstance(value, torch.Tensor | int | float | str)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that autograd can use, also of a tensor made in inference mode."""
    return tensor.detach().clone()
