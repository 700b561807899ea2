"""The tries on a first batch that find out what a loss's signature leaves open. What a try changes is undone."""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.step.calls import PartsLeft, SplitBatch, positional_count, splitter
from advisor.step.losses import (
    LossError,
    describe_loss,
    loss_of_part,
    number_in,
    own_loss_in,
    parameters_of_loss,
    returned,
    whole_batch,
)
from advisor.step.nested import map_tensors
from advisor.step.read_code import calls
from advisor.step.spread import unwrapped
from advisor.step.undone import undone
from advisor.step.walk import found_in

# How PyTorch refuses a loss under autocast: binary cross-entropy of probabilities, which half precision would round
# to 0 and 1.
UNSAFE = "unsafe to autocast"


class LossTries:
    """The tries that tell a ``LossCall`` how its loss is called. ``loss`` is the user's own, None without one.

    Nothing is tried of a model over several ranks, nor of a loss that takes values from an iterator: a try would use
    one up.
    """

    def __init__(self, call: Any, loss: Callable[..., Any] | None) -> None:
        self.call = call
        alone = unwrapped(call.model) is call.model
        may_try = loss is not None and alone and not iterator_of(call.model, loss)
        self._target_is_open = may_try and not call.loss_takes_output_only
        autocast = call.plan.autocast != "none"
        self._precision_is_open = autocast and may_try and may_refuse_autocast(call.loss_function)
        takes_labels = positional_count(call.model) != positional_count(call.model, with_labels=True)
        self._own_loss_is_open = loss is None and takes_labels and alone

    @property
    def are_open(self) -> bool:
        """Whether a try has to tell which form the loss has, or in which precision it can be computed."""
        settled = self.call.loss_takes_model is not None and not self._target_is_open
        return not settled or self._own_loss_is_open or self._precision_is_open

    def settle(self, batch: Any) -> str:
        """Find out by trying which form the loss has, where its signature leaves that open.

        Returns a sentence on what was found; empty when nothing was open. ``batch`` is on the device. Raises LossError
        when no form works.
        """
        in_full, inputs = self._settle_precision(batch), self._optional_inputs(batch)
        form = self._settle_form(batch)
        return "; ".join(filter(None, (in_full, form, "" if self.call.loss_takes_model else inputs)))

    def _optional_inputs(self, batch: Any) -> str:
        """A sentence on parts of a batch that become inputs which the model can do without; once, else empty."""
        needed = positional_count(self.call.model)
        if not self._target_is_open or not isinstance(batch, tuple | list) or needed is None:
            return ""
        given = len(self.call.split(batch).args)
        if not needed < given < len(batch):
            return ""
        return f"the model gets the first {given} of the {len(batch)} parts of a batch, though it needs {needed}"

    def _settle_precision(self, batch: Any) -> str:
        """Compute a loss in float32 that PyTorch does not run under autocast, and say so; empty for any other."""
        is_open, self._precision_is_open = self._precision_is_open, False
        if not is_open or self.call.loss_takes_model:
            return ""
        with self.call.as_in_a_step(), undone(self.call.model, self.call.loss_function):
            failure = failure_of(lambda: self.call.loss_of_output(batch))
        if UNSAFE not in failure:
            return ""
        self.call.loss_function = in_float32(self.call.loss_function, self.call.plan.device_type)
        self.call.compile_whole()
        return "the loss is computed in float32, outside autocast, under which PyTorch refuses it"

    def _settle_form(self, batch: Any) -> str:
        """Find out which form of call the loss takes, by trying."""
        if self._target_is_open:
            self._target_is_open = False
            if found := self._settle_target(batch):
                return found
        if self._own_loss_is_open and isinstance(batch, tuple | list):
            self._own_loss_is_open = False
            if found := self._leave_target_to_model(batch):
                return found
        if self.call.loss_takes_model is not None:
            return ""
        with self.call.as_in_a_step():
            try:
                form, found = form_that_works(
                    self.call.loss_function, self.call.model, batch, lambda: self.call.loss_of_output(batch)
                )
            except LossError:
                self.call.output_of(batch)  # where the model fails, its error is the one to tell
                raise
        self.call.loss_takes_model = form
        self.call.compile_whole()
        return found

    def _settle_target(self, batch: Any) -> str:
        """Give the loss the target or the whole batch, and the model the labels too, whichever works.

        Returns a sentence that says so; empty where nothing has to change, or nothing works.
        """
        if self.call.loss_takes_model or self.call.targets:
            return ""
        if self.call.target_of is not whole_batch and isinstance(self.call.split(batch).target, PartsLeft):
            return self._settle_parts(batch)
        by_place = isinstance(batch, torch.Tensor | tuple | list) and not hasattr(batch, "_fields")
        signature_tells = by_place and self.call.loss_takes_model is False
        if signature_tells and self.call.target_of is not whole_batch:
            return ""
        first = self.call.split_mapping, self.call.target_of
        with self.call.as_in_a_step():
            found = next((form for form in self._forms(batch) if self._works(batch, *form)), first)
        self.call.split_mapping, self.call.target_of = found
        if found == first:
            return ""
        self.call.loss_takes_model = False
        self.call.compile_whole()
        of_model = "the whole batch" if found[0] == self._mapping_itself else "the labels too"
        told = [f"the model gets {of_model}"] if found[0] is not first[0] else []
        if found[1] is not first[1]:
            told.append(f"the loss gets {'the whole batch' if found[1] is whole_batch else 'the target'}")
        return f"{' and '.join(told)}: the loss works only so, and a try worked"

    def _settle_parts(self, batch: Any) -> str:
        """Give the loss the parts of a batch that the model has no inputs for, one of them, or the whole batch.

        Returns a sentence on which; empty where nothing works. Raises LossError where several ways give other losses.
        """
        loss, count = self.call.loss_function, len(self.call.split(batch).target)
        first = len(batch) - count + 1
        parts = [(loss_of_part(loss, index), self.call.target_in, f"part {first + index}") for index in range(count)]
        ways = [(loss, self.call.target_in, f"parts {first} to {len(batch)}"), *parts, (loss, whole_batch, "the whole")]
        working = []
        with self.call.as_in_a_step():
            for way in ways:
                self.call.loss_function, self.call.target_of = way[:2]
                if (value := self._value(batch)) is not None:
                    working.append((way, value))
        self.call.loss_function, self.call.target_of = working[0][0][:2] if working else ways[0][:2]
        if not working:
            return ""
        told = " and ".join(way[2] for way, _ in working)
        if not all(torch.equal(value, working[0][1]) for _, value in working):
            raise LossError(
                f"the loss works with {told} of a batch of {len(batch)} parts, and gives different numbers.",
                "Write it as `def loss(output, batch)`, with these names: it gets the whole batch.",
            )
        self.call.loss_takes_model = False
        self.call.compile_whole()
        return f"the loss gets {working[0][0][2]} of a batch of {len(batch)} parts: it works only so, and a try worked"

    def _forms(self, batch: Any) -> list[tuple[Callable[[Any], SplitBatch], Callable[[Any], Any]]]:
        """The ways to tell inputs and target apart, the present one first."""
        splits, targets = [self.call.split_mapping], [self.call.target_of]
        whole = splitter(self.call.model, with_target=False)
        if isinstance(batch, Mapping) and whole(batch).kwargs.keys() != splits[0](batch).kwargs.keys():
            splits.append(whole)
        if isinstance(batch, Mapping):
            splits.append(self._mapping_itself)
        targets.append(self.call.target_in if self.call.target_of is whole_batch else whole_batch)
        return [(split, target) for split in splits for target in targets]

    def _mapping_itself(self, batch: Any) -> SplitBatch:
        """A mapping as the one input of a model."""
        return SplitBatch((batch,), {})

    def _works(self, batch: Any, split: Callable[[Any], SplitBatch], target_of: Callable[[Any], Any]) -> bool:
        """Whether a way to tell inputs and target apart gives a loss. What the try changes is undone."""
        self.call.split_mapping, self.call.target_of = split, target_of
        return self._value(batch) is not None

    def _value(self, batch: Any) -> torch.Tensor | None:
        """The loss of a try, which is undone; None where it gives none."""
        found: list[Any] = []

        def tried() -> Any:
            found.append(self.call.loss_of_output(batch))
            return found[0]

        with undone(self.call.model, self.call.loss_function):
            failure = failure_of(tried)
            number = None if failure else number_in(found[0])
            return None if number is None else number.detach().clone()

    def _leave_target_to_model(self, batch: Any) -> str:
        """Give the model its target too where it returns a loss then, as ``forward(x, targets=None)`` may.

        Returns a sentence that says so; empty where it returns none, or one number without the target too.
        """
        whole = splitter(self.call.model, with_target=False, with_labels=True)
        if len(whole(batch).args) != len(batch):
            return ""

        def gives_loss(split: SplitBatch) -> bool:
            with undone(self.call.model):
                return not failure_of(lambda: own_loss_in(self.call.model(*split.args, **split.kwargs)))

        with self.call.as_in_a_step():
            if not gives_loss(whole(batch)) or gives_loss(self.call.split(batch)):
                return ""
        self.call.split = self.call.split_mapping = whole
        self.call.loss_function, self.call.loss_takes_output_only = own_loss_in, True
        self.call.compile_whole()
        return "the model gets the target too: no loss was given, and so it returns its own"


def may_refuse_autocast(loss: Callable[..., Any]) -> bool:
    """Whether PyTorch could refuse a loss under autocast: not one of its own, but for binary cross-entropy."""
    own = isinstance(loss, torch.nn.Module) and type(loss).__module__ == torch.nn.BCELoss.__module__
    return not own or isinstance(loss, torch.nn.BCELoss)


def in_float32(loss: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """A loss that is computed outside autocast, of outputs in float32. It keeps its name for the target."""

    def in_full(output: Any, *target: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return loss(map_tensors(_widened, output), *target)

    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss)
        in_full.__signature__ = signature  # type: ignore[attr-defined]
    return in_full


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def form_that_works(
    loss: Callable[..., Any], model: torch.nn.Module, batch: Any, of_output: Callable[[], Any]
) -> tuple[bool, str]:
    """Return whether ``loss(model, batch)`` is the form that works, and a sentence that says so.

    ``of_output`` computes ``loss(output, target)``, which is tried first. A form works when it gives a number with a
    gradient. What a try changes is undone: gradients, buffers (the statistics of batch normalisation), random numbers.
    Raises LossError when neither form works.
    """
    if taken_from := iterator_of(model, loss):
        if calls_first(loss):
            return True, f"the loss is called as {form_text(True)}: it calls what it is given first"
        raise LossError(
            f"{describe_loss(loss)} or the model takes values from a {taken_from}, and a try would use one up.",
            "Write it as `def loss(output, target)` or `def loss(model, batch)`, with these names.",
        )
    failures = []
    for form, call in ((False, of_output), (True, lambda: loss(model, batch))):
        with undone(model, loss):
            failure = failure_of(call)
        if not failure:
            return form, f"the loss is called as {form_text(form)}: its signature leaves that open, and a try worked"
        failures.append(f"{form_text(form)}: {failure}")
    raise LossError(
        f"the loss {describe_loss(loss)} works in neither form: {'; '.join(failures)}.",
        "Write it as `def loss(output, target)` or `def loss(model, batch)`, with these names, returning a scalar.",
    )


def iterator_of(*calls: Callable[..., Any]) -> str:
    """The kind of an iterator that a model or a loss takes values from, such as a generator; empty for none."""
    return found_in(*calls).taken_from


def calls_first(loss: Callable[..., Any]) -> bool:
    """Whether the code of a loss calls its first argument, which is the model then."""
    code = getattr(getattr(loss, "__func__", loss), "__code__", None)
    return code is not None and any(calls(code, one.name) for one in parameters_of_loss(loss)[:1])


def form_text(of_model: bool) -> str:
    """A form of a loss as a person writes it."""
    return "loss(model, batch)" if of_model else "loss(output, target)"


def failure_of(call: Callable[[], Any]) -> str:
    """The reason that a call gives no loss; empty when it gives one. Raises where memory runs out."""
    try:
        value = call()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's code raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    number = number_in(value)
    if number is None:
        return f"it returns {returned(value)}"
    return "" if number.requires_grad else "its result does not depend on the model's parameters"
