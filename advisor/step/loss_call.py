"""The calls of a model and its loss on a batch."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from advisor.recipe.plan import StepPlan
from advisor.step.calls import PartsLeft, splitter
from advisor.step.compile import compiled_call
from advisor.step.contexts import Planned
from advisor.step.loss_tries import LossTries
from advisor.step.losses import (
    LossError,
    default_loss,
    loss_in,
    of_two,
    takes_model,
    takes_output_and_batch,
    takes_output_only,
    target_name_of,
    targets_of,
    whole_batch,
)


class LossCall(Planned):
    """A forward pass with its loss. What a loss's signature leaves open is settled by a try on the first batch."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any] | None, plan: StepPlan) -> None:
        super().__init__(model, plan)
        self.loss_function: Callable[..., Any] = default_loss if loss is None else of_two(loss)
        self.loss_takes_model = takes_model(loss) if loss is not None else False
        # Nobody else is to get the target then: the model takes what it needs of the batch.
        self.loss_takes_output_only = loss is not None and takes_output_only(loss)
        if self.loss_takes_output_only:
            self.loss_takes_model = False
        self._whole: Callable[..., Any] | None = None
        self.compile_whole()
        apart = not self.loss_takes_output_only
        name = target_name_of(loss) if apart and loss is not None else ""
        self.targets = () if loss is None else targets_of(loss)
        targets = max(1, len(self.targets))
        self.split = splitter(model, with_target=apart, with_labels=not apart, target_name=name, targets=targets)
        # Without a loss a mapping keeps its labels for a model that takes them (Hugging Face): it computes its own.
        self.split_mapping = splitter(model, with_target=apart and loss is not None, target_name=name)
        of_batch = loss is not None and takes_output_and_batch(loss)
        self.target_of: Callable[[Any], Any] = whole_batch if of_batch else self.target_in
        self.tries = LossTries(self, loss)

    def forward(self, batch: Any) -> Any:
        """The model's output; the whole loss when the loss takes the model or is compiled with it."""
        self.settle_loss(batch)
        with self.around_forward(), self._creation(), self._attention(), self._autocast:
            if self.loss_takes_model:
                return (self._whole or self.loss_function)(self.model, batch)
            split = (self.split_mapping if isinstance(batch, Mapping) else self.split)(batch)
            if self._whole is not None:
                return self._whole(self.target_of(batch), *split.args, **split.kwargs)
            return self.model(*split.args, **split.kwargs)

    @contextmanager
    def as_in_a_step(self) -> Iterator[None]:
        """A context for tries: the same one as around the forward pass of a step."""
        with self._creation(), self._attention(), self._autocast:
            yield

    def settle_loss(self, batch: Any) -> str:
        """Find out by trying which form the loss has, where its signature leaves that open.

        Returns a sentence on what was found; empty when nothing was open. ``batch`` is on the device. Raises LossError
        when no form works.
        """
        return self.tries.settle(batch)

    @property
    def loss_is_open(self) -> bool:
        """Whether a try has to tell which form the loss has, or in which precision it can be computed."""
        return self.tries.are_open

    @property
    def loss_is_apart(self) -> bool:
        """Whether the forward pass ends with the model's output, and the loss is computed from that."""
        return self.loss_takes_model is False and self._whole is None

    @property
    def loss_of_known_form(self) -> Callable[..., Any]:
        """The loss with a signature that tells its form, after :meth:`settle_loss`."""
        loss = self.loss_function

        def of_model(model: Any, batch: Any) -> Any:
            return loss(model, batch)

        def of_batch(output: Any, batch: Any) -> Any:
            return loss(output, batch)

        def of_output(output: Any, target: Any) -> Any:
            return loss(output, target)

        if self.loss_takes_model:
            return of_model
        if self.loss_takes_output_only or self.targets:
            return loss
        if self.target_of is whole_batch:
            return of_batch
        # By the loss's own name for its target it is found in a mapping.
        name = target_name_of(loss)
        names = ("output", "target" if name in ("", "batch", "output") else name)
        places = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        of_output.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
        return of_output

    def loss_of_output(self, batch: Any) -> Any:
        """Run the model on a batch and call the loss with its output and target; the loss's result as it is."""
        return self._loss_of(self.output_of(batch), self.target_of(batch))

    def output_of(self, batch: Any) -> Any:
        """Run the model on a batch."""
        split = (self.split_mapping if isinstance(batch, Mapping) else self.split)(batch)
        return self.model(*split.args, **split.kwargs)

    def target_in(self, batch: Any) -> Any:
        """The target of a batch, or the tuple of those that the loss needs."""
        target = self.split(batch).target
        if self.targets:
            return self._several_in(batch, target)
        # Without a loss the first of several is it.
        return target[0] if isinstance(target, PartsLeft) and self.loss_function is default_loss else target

    def _several_in(self, batch: Any, target: Any) -> tuple[Any, ...]:
        """The targets of a loss that needs several, in its order. Raises LossError where a batch has others."""
        names = self.targets
        if isinstance(batch, Mapping) and batch.keys() >= set(names):
            return tuple(batch[name] for name in names)
        if isinstance(target, tuple | list) and len(target) == len(names):
            return tuple(target)
        raise LossError(
            f"the loss needs {' and '.join(names)} beside the output, and a batch has no such parts.",
            f"Give batches of (inputs, {', '.join(names)}), or dicts with these keys.",
        )

    def _loss_of(self, output: Any, target: Any) -> Any:
        """The loss of an output, for a loss that is not called with the model."""
        return self.loss_function(output) if self.loss_takes_output_only else self.loss_function(output, target)

    def compile_whole(self) -> None:
        """Put forward pass and loss into one compiled function, once the loss's form is known."""
        if not self.plan.compiles_loss or self.loss_takes_model is None:
            return
        model, loss, of_output_only = self.model, self.loss_function, self.loss_takes_output_only

        def whole(target: Any, *args: Any, **kwargs: Any) -> Any:
            output = model(*args, **kwargs)
            return loss(output) if of_output_only else loss(output, target)

        self._whole = compiled_call(loss if self.loss_takes_model else whole, self.plan)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss of an output. Raises LossError when the loss function returns anything else."""
        if self.loss_takes_model or self._whole is not None:
            return loss_in(output)
        with self._creation(), self._autocast:
            return loss_in(self._loss_of(output, self.target_of(batch)))
