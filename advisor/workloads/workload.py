"""Workload: the full form of a target, which ``build()`` may return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from advisor.records import Value


@dataclass(slots=True)
class Workload:
    """A model and the parts of its loop.

    Args:
        model: the ``nn.Module``.
        data: a ``DataLoader`` or another iterable of batches, one batch, or a callable ``batch_size -> batch``.
            A batch is a tensor, a tuple ``(inputs, target)``, or a dict of the model's keyword arguments.
        loss: ``loss(output, target)``, or ``loss(model, batch)`` if its first parameter is named ``model`` (or is
            annotated as a module). Use ``loss(output)`` if the model gets its target in the batch or has no target,
            and ``loss(output, batch)`` if the loss needs several parts of the batch. It returns a scalar.
        optimizer: an instance, or a callable that takes parameters (for example ``torch.optim.AdamW``).
        mode: ``train`` or ``infer``; by default train if there is a loss, an optimizer or a target in the batch.
        current: the settings that the loop has already, for example ``{"precision.autocast": "float16"}``.
        clip_grad: the gradient norm to which the loop clips before each update, if it clips.
        step: ``step(batch)``, your own whole step in place of ``loss`` and ``optimizer``. It updates the weights and
            returns the loss; if ``mode`` is ``infer``, it returns the output. The batch is on the models' device.
        models: the models that ``step`` uses, if there are several.
        optimizers: the optimizers that ``step`` uses, so that optimizer settings can be tried.
    """

    model: Any = None
    data: Any = None
    loss: Any = None
    optimizer: Any = None
    mode: str | None = None
    current: Mapping[str, Value] = field(default_factory=dict)
    clip_grad: float | None = None
    step: Callable[[Any], Any] | None = None
    models: Any = None
    optimizers: Any = None
