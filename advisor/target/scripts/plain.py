"""The workload of an observed script: the parts of a plain loop, or else the body of its loop as one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from advisor.portable.calls import splitter
from advisor.portable.nested import tensors_of
from advisor.target.hubs.contract import Adapted
from advisor.target.scripts.body import NoBodyError, step_of, training_loop
from advisor.target.scripts.watch import LossCall, ModelCall, Seen


def workload_of(seen: Seen) -> Any:
    """The workload that was seen. Raises NoBodyError where the loop can be neither taken apart nor run by itself."""
    if seen.fitted is not None:
        return seen.fitted
    if not seen.updates:
        return _inference(seen)
    return _plain(seen) or _own_step(seen)


def _plain(seen: Seen) -> Adapted | None:
    """The parts of a loop that is ``loss(model(inputs), target)`` and one update; None for another one."""
    if len(seen.updates) != 1 or len(seen.calls) != 1 or len(seen.backward) != 1:
        return None
    if seen.changes_gradients or seen.changes_batch:
        return None
    call, loss, batch = seen.calls[0], _loss_of(seen), seen.batch
    if batch is None:
        batch = _made_batch(call, loss)
    if batch is None or call.autocast == "float16":
        return None
    if loss is None:
        kwargs = splitter(call.module, with_target=False)(batch).kwargs
        own = getattr(call.output, "loss", None) is seen.backward[0] and not call.args and _same(kwargs, call.kwargs)
    else:
        split = splitter(call.module, with_target=True)(batch)
        own = _same(split.args, call.args) and not split.kwargs and not call.kwargs
        own = own and _same(split.target, loss.args[1])
    if not own:
        return None
    data = batch if seen.loader is None else seen.loader
    current = {} if call.autocast == "none" else {"precision.autocast": call.autocast}
    made = "" if seen.loader is not None else "; its batch is measured again and again, without the making of batches"
    return Adapted(
        model=call.module,
        data=data,
        loss=None if loss is None else _bound(loss),
        optimizer=seen.updates[0],
        mode="train",
        current=current,
        clip_grad=seen.clip_norm,
        notes=[f"the script's model, loss and optimizer as its first step used them{made}; the rest is left out"],
    )


def _loss_of(seen: Seen) -> LossCall | None:
    """The call that made what ``backward`` was called on, from the model's output and a target."""
    output = seen.calls[0].output
    for loss in seen.losses:
        if loss.result is seen.backward[0] and len(loss.args) == 2 and loss.args[0] is output:
            return loss
    return None


def _bound(loss: LossCall) -> Any:
    """The loss as a function of an output and a target, with the options that it was called with."""
    if not loss.kwargs:
        return loss.function

    def loss_function(output: Any, target: Any) -> Any:
        return loss.function(output, target, **loss.kwargs)

    return loss_function


def _made_batch(call: ModelCall, loss: LossCall | None) -> Any:
    """The batch of a loop without a loader, from what the model and the loss were called with."""
    if loss is None or not call.args or next(tensors_of(call.args), None) is None:
        return None
    return (*call.args, loss.args[1])


def _same(one: Any, other: Any) -> bool:
    """Whether two nests of tensors hold the same values, wherever they are."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (one.shape == other.shape and torch.equal(one.cpu(), other.cpu().to(one.dtype)))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other


def _own_step(seen: Seen) -> Adapted:
    """The body of the script's loop as a step of its own."""
    if not seen.models:
        raise NoBodyError("the parameters that are updated belong to no module that was called")
    loop = training_loop(seen.frames, seen.loader)
    step, data = step_of(loop, seen.loader)
    return Adapted(
        data=data,
        mode="train",
        step=step,
        models=list(_outermost(seen.models)),
        optimizers=seen.optimizers,
        notes=[f"the body of the loop at {loop.place} is the step, with all that it does"],
    )


def _outermost(models: Iterable[nn.Module]) -> Iterable[nn.Module]:
    """The modules that are no part of another one among them."""
    models = list(models)
    for model in models:
        if not any(model is not other and any(part is model for part in other.modules()) for other in models):
            yield model


def _inference(seen: Seen) -> Adapted:
    """The model and the loader of a script that updates nothing."""
    if not seen.models or seen.batch is None:
        raise NoBodyError("no optimizer made an update, and no model was called with the batches of a DataLoader")
    call = next(call for call in reversed(seen.calls) if call.module in seen.models)
    split = splitter(call.module, with_target=False)(seen.batch)
    if not _same(split.args, call.args) or not _same(split.kwargs, call.kwargs):
        raise NoBodyError("no optimizer made an update, and the model was called with something else than a batch")
    return Adapted(
        model=call.module.eval(),
        data=seen.loader,
        mode="infer",
        notes=["the script's model on the batches of its loader; nothing was updated, so this is inference"],
    )
