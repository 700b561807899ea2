"""The workload of a script that only predicts: its model, and what it is called with."""

import contextlib
import copy
import inspect
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from advisor.step.batch import map_tensors, splitter
from advisor.workloads.hubs.contract import Adapted
from advisor.workloads.scripts.seen import ModelCall, NoLoopError, Seen, same_values


def inference_of(seen: Seen) -> Adapted:
    """The model of a script that updates nothing, on its loader, or else on the inputs of its last call."""
    if seen.goes_backward:
        raise NoLoopError("gradients are computed, and no optimizer of torch.optim makes an update with them in a loop")
    if not seen.calls:
        raise NoLoopError("no optimizer made an update, and no model was called")
    of_loader = [call for call in seen.calls if _is_called_with(call, seen.batch)]
    call = (of_loader or seen.calls)[-1]
    inputs = "batches of its loader" if of_loader else "inputs of its last call, without the making of these inputs"
    notes = [f"the script's model on the {inputs}; nothing was updated, so this is inference"]
    if of_loader and len(seen.calls) > 1:
        notes.append(
            "the script calls its models several times for a batch; the call with the batch itself is measured"
        )
    if seen.goes_on:
        notes.append(
            "the script was left while it went on predicting: if it trains afterwards, let it come to that sooner"
        )
    data = seen.loader if of_loader else _inputs_alone(call, seen)
    model = call.module.eval()
    if any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # autograd works with what was not made in inference mode
    current = {**call.current, "infer.grad": call.gradients}
    return Adapted(model=model, data=data, mode="infer", current=current, notes=notes)


def _is_called_with(call: ModelCall, batch: Any) -> bool:
    if batch is None:
        return False
    split = splitter(call.module, with_target=False)(batch)
    return same_values(split.args, call.args) and same_values(split.kwargs, call.kwargs)


def _inputs_alone(call: ModelCall, seen: Seen) -> Any:
    """The inputs of a call as a batch. Raises NoLoopError for several models, or for inputs such as a cache."""
    if len(seen.models) > 1:
        raise NoLoopError("no optimizer made an update, and none of several models was called with a loader's batch")
    # Copies can be used by autograd, also those of tensors that were made in inference mode.
    args, kwargs = map_tensors(lambda tensor: tensor.detach().clone(), (call.args, call.kwargs))
    named = {"args": args, "kwargs": kwargs}
    with contextlib.suppress(TypeError, ValueError):  # a forward without a signature
        named = inspect.signature(call.module.forward).bind(*args, **kwargs).arguments
    if not all(isinstance(leaf, torch.Tensor | int | float | str | None) for leaf in tree_leaves(named)):
        problem = "no optimizer made an update, and the model was called with something else than a batch"
        generates = "; `perf-advisor hf:NAME -- generate=64` measures how a model generates text"
        raise NoLoopError(problem + (generates if hasattr(call.module, "generate") else ""))
    alone = [*named.values()] if len(named) == 1 else []
    return alone[0] if alone and isinstance(alone[0], torch.Tensor) else named
