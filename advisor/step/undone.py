"""Trying a model and a loss, and taking back what the try changed."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from advisor.step.host_draws import draws_kept, own_draws_kept
from advisor.step.losses import modules_of_loss
from advisor.step.places import Values
from advisor.step.python_state import PythonState, buffers_kept
from advisor.step.walk import found_in
from advisor.step.writes import writes_undone


@contextlib.contextmanager
def undone(model: torch.nn.Module, loss: Any = None) -> Iterator[None]:
    """Give the model and the loss's modules their gradients, buffers and attributes back, and generators their states.

    Attributes are what modules keep from call to call: their mode, a hidden state, a buffer that is replaced, a list
    that grows, the counts of a metric. What is written into tensors from before is undone, too, as into a teacher's
    that follow the weights.
    """
    wholes = [model, *modules_of_loss(loss)]
    gradients = [(parameter, parameter.grad) for whole in wholes for parameter in whole.parameters()]
    modules = [module for whole in wholes for module in whole.modules()]
    attributes, elsewhere = PythonState(modules, with_hooks=True), Values(found_in(loss).places.values())
    walk = found_in(model, loss)
    own_draws = own_draws_kept((*walk.generators, *walk.device_generators))
    try:
        eager = torch.compiler.set_stance("force_eager")
        with buffers_kept(*wholes), draws_kept(*wholes), own_draws, eager, writes_undone(*wholes):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        elsewhere.put_back()
        attributes.put_back()
