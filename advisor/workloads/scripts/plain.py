"""The workload of an observed script: the parts of a plain loop, else a round of its loop; or what it predicts with."""

import ast
import contextlib
import copy
import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from advisor.python import trees
from advisor.python.loops import FoundLoop
from advisor.step.batch import map_tensors, splitter, tensors_of
from advisor.step.loader import length_of
from advisor.workloads.hubs.contract import Adapted
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.heads import Head
from advisor.workloads.scripts.running import Pause, ScriptStep
from advisor.workloads.scripts.seen import ModelCall, NoLoopError, Seen, parameters_in, same_values
from advisor.workloads.scripts.written import written_parts


def workload_of(seen: Seen) -> Any:
    """The workload that was seen. Raises NoLoopError where the loop can be neither taken apart nor run by itself."""
    if seen.fitted is not None:
        return seen.fitted
    if seen.trains_elsewhere:
        raise NoLoopError("processes that it starts train")
    if seen.endless:
        return _whole(None, seen)
    if not seen.updates and not seen.by_hand:
        return _inference_of(seen)
    loop = seen.loop
    ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    plain = None if ranks > 1 else _plain(loop, seen)  # what the loop exchanges is part of a rank's step
    workload = plain or _whole(loop, seen)
    if seen.pause is not None:  # else the script has ended after its only round, as a dry run does
        workload.whole_round = _rounds_of(loop, seen)
    return workload


def _plain(loop: FoundLoop, seen: Seen) -> Adapted | None:
    """The parts of a loop of one update of one model, as its text says them; None where it does more.

    Of a loop without a loader two rounds were seen. Where no round clears the gradients, they add up over rounds.
    """
    rounds = 1 if seen.loader is not None else 2
    if len(seen.passes) != rounds or len(seen.updates) != 1 or len(seen.models) != 1 or not loop.clears:
        return None
    of_model = (call for call in seen.calls if call.module is seen.models[0])
    call = next((call for call in of_model if call.gradients == "grad"), None)
    if call is None or not call.trains or seen.changes_gradients or call.autocast == "float16":
        return None
    found = written_parts(loop, seen, call.module) if loop.where.is_users else None
    if found is None:
        return None
    data, loss = found
    made = ", its batches as the loop makes them" if isinstance(data, GivenBatches) else ""
    parts = f"the script's model and optimizer, and the loss as the loop at {loop.place} computes it of a batch{made}"
    return Adapted(
        model=call.module,
        data=data,
        loss=loss,
        optimizer=seen.updates[0],
        mode="train",
        current=call.current,
        clip_grad=seen.clip_norm,
        notes=[f"{parts}; the rest of the script is left out", *_beside(seen, "is not measured")],
    )


def _whole(loop: FoundLoop | None, seen: Seen) -> Adapted:
    """A round of the script's loop as a step of its own; without a loop, an iteration of its one update."""
    notes = ["one optimizer.step(closure) is all of the training; a call of its closure is the step"]
    if loop is not None:
        seen.updates += _other_optimizers([loop], seen)
        notes = [f"a round of the loop at {loop.place} is the step", *_beside(seen, "runs as it is")]
    # What is trained may be an image, a copy of the weights, or what torch.func gives a module without values.
    models = [one for one in seen.models or seen.called if not any(p.is_meta for p in one.parameters())]
    models = models or [nn.ParameterList(p for one in seen.updates for p in parameters_in(one))]
    step, data = _rounds_of(loop, seen)
    step.casts = seen.casts
    return Adapted(
        data=data,
        mode="train",
        step=step,
        models=[one for one in models if not any(one is not o and any(m is one for m in o.modules()) for o in models)],
        optimizers=seen.optimizers,
        notes=notes,
        samples=_samples(seen),
    )


def _rounds_of(loop: FoundLoop | None, seen: Seen) -> tuple[ScriptStep, Any]:
    """The rounds of the script as ``step(batch) -> loss``, and what feeds them: the loader, or numbers."""
    heads: list[Head] = []
    for one in seen.loops if loop else ():
        heads += filter(None, [Head.latest.get((one.where.code, one.statement.lineno))])
        if _optimizers_named(one.beside, one, ast.Store):  # a loop around it, as of several seeds, makes another
            break
    for head in heads:
        head.counts_to = None if seen.loader is None else length_of(seen.loader)
        head.goes_on = head is heads[-1]
    place = loop.place if loop else next(f"{where.file}:{where.line}" for where in seen.frames if where.is_users)
    step = ScriptStep(seen.script, place, seen.pause or Pause(), seen.iterators, seen.optimizers)
    step.loop = loop
    return step, GivenBatches(itertools.count, "the script's own loop") if seen.loader is None else seen.loader


def _optimizers_named(statements: Iterable[ast.AST], loop: FoundLoop, context: type) -> list[Optimizer]:
    """The optimizers that statements read (``ast.Load``), or make (``ast.Store``), by the names of a loop."""
    named = (node for node in trees.names_in(statements) if isinstance(node.ctx, context))
    values = (trees.value_of(node, loop.where.names) for node in named)
    return [value for value in values if isinstance(value, Optimizer)]


def _other_optimizers(loops: Iterable[FoundLoop], seen: Seen) -> list[Optimizer]:
    """The optimizers that loops name, and whose parameters none of the updates trained."""
    trained = {id(p) for one in seen.updates for p in parameters_in(one)}
    named = {id(one): one for loop in loops for one in _optimizers_named([loop.statement], loop, ast.Load)}
    return [one for one in named.values() if trained.isdisjoint(map(id, parameters_in(one)))]


def _beside(seen: Seen, fate: str) -> list[str]:
    """A sentence on the updates of other optimizers, such as the generator's around the loop of a critic."""
    others = _other_optimizers(seen.loops, seen)
    return [f"updates by {type(one).__name__} around this loop {fate}" for one in others]


def _samples(seen: Seen) -> int | None:
    """The samples of one step: the rows that its models were given, once for each backward pass; None if unknown.

    A model that is called oftener than there are backward passes, as one that compares two images, got its samples
    several times, in the largest call all of them; so did the discriminator of a generator that was called once.
    """
    calls, backward_passes = seen.round or (seen.calls, 1)
    of_models = [[call for call in calls if call.module is model and call.gradients == "grad"] for model in seen.models]
    fewest = min(filter(None, of_models), key=len, default=[])
    # The first input that is no single number, as the time of a step is; numbers in a row, as observed, are one sample.
    first = [[one for one in tensors_of((call.args, call.kwargs)) if one.dim()][:1] for call in fewest]
    rows = [one.shape[0] for found in first for one in found if one.dim() > int(one.is_floating_point())]
    return max(rows) * max(1, min(len(fewest), backward_passes)) if any(rows) else None


# --- scripts that only predict ----------------------------------------------------------------------------------------


def _inference_of(seen: Seen) -> Adapted:
    """The model of a script that updates nothing, on its loader, or else on the inputs of its last call."""
    if seen.goes_backward:
        raise NoLoopError("gradients are computed, and no optimizer of torch.optim makes an update with them in a loop")
    if not seen.calls:
        raise NoLoopError("no optimizer made an update, and no model was called")
    of_loader: list[ModelCall] = []
    for one in seen.calls if seen.batch is not None else ():
        split = splitter(one.module, with_target=False)(seen.batch)
        of_loader += [one] if same_values((split.args, split.kwargs), (one.args, one.kwargs)) else []
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
