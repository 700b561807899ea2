"""The workloads as scripts of people who have not tuned them: a model, data, a loss, an optimizer."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from catalogue import Workload
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

NAMES = ("model", "data", "loss", "optimizer")


@dataclass
class Script:
    """The objects before the loop. ``data`` is one batch on the device, or a DataLoader.

    ``loss`` is ``loss(output, target)``, ``loss(model, batch)``, or None where the model returns its own.
    """

    model: torch.nn.Module
    data: Any
    loss: Callable[..., torch.Tensor] | None
    make_optimizer: Callable[..., torch.optim.Optimizer]
    device: torch.device
    trains: bool


def load(workload: Workload, device: torch.device) -> Script:
    """Build the script of a workload, from the same random numbers each time."""
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location(f"workload_{workload.file.stem}", workload.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where compilers find it
    spec.loader.exec_module(module)
    built = getattr(module, workload.target.rpartition(":")[2])()
    named = dict(built) if isinstance(built, Mapping) else dict(zip(NAMES, built, strict=False))
    model, data = named["model"].to(device).train(workload.trains), named["data"]
    if workload.batch_size is not None:
        data = _inputs(data, workload.batch_size)
    if not isinstance(data, DataLoader):
        data = on(device, data)
    return Script(model, data, named.get("loss"), named.get("optimizer"), device, workload.trains)


def on(device: torch.device, batch: Any, *, non_blocking: bool = False) -> Any:
    """A batch, or a nested structure of tensors, on the device."""
    return tree_map(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch)


def loss_of(script: Script) -> Callable[[Any], torch.Tensor]:
    """The function from a batch to its loss, as a loop writes it."""
    model, loss = script.model, script.loss
    if loss is None:
        return lambda batch: model(**batch).loss
    if next(iter(inspect.signature(loss).parameters)) == "model":
        return lambda batch: loss(model, batch)

    def of_output(batch: Any) -> torch.Tensor:
        *inputs, target = batch
        return loss(model(*inputs), target)

    return of_output


def output_of(script: Script) -> Callable[[Any], Any]:
    """The function from inputs to the model's output."""
    model = script.model
    return lambda batch: model(**batch) if isinstance(batch, dict) else model(*batch)


def _inputs(data: Any, batch_size: int) -> Any:
    """Inputs of the size asked for: made by the script's function, or repeated from its batch, without the target."""
    if callable(data):
        return data(batch_size)
    inputs, _target = data
    return (inputs[torch.arange(batch_size) % len(inputs)],)
