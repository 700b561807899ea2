"""The calls of a model and its loss on a batch, and the tries that find out their form."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from advisor.portable.calls import PartsLeft, SplitBatch, positional_count, splitter
from advisor.portable.contexts import Planned, compiled_call
from advisor.portable.late_hooks import unless_hooks_differ
from advisor.portable.losses import (
    UNSAFE,
    LossError,
    default_loss,
    failure_of,
    form_that_works,
    in_float32,
    iterator_of,
    loss_in,
    loss_of_part,
    may_refuse_autocast,
    number_in,
    of_two,
    own_loss_in,
    takes_model,
    takes_output_and_batch,
    takes_output_only,
    target_name_of,
    targets_of,
    undone,
    whole_batch,
)
from advisor.portable.parallel import unwrapped
from advisor.portable.plan import StepPlan


class LossCall(Planned):
    """A forward pass with its loss. What a loss's signature leaves open is settled by a try on the first batch."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any] | None, plan: StepPlan) -> None:
        super().__init__(model, plan)
        self.loss_function: Callable[..., Any] = default_loss if loss is None else of_two(loss)
        self._loss_takes_model = takes_model(loss) if loss is not None else False
        # Nobody else is to get the target then: the model takes what it needs of the batch.
        self._loss_takes_output_only = loss is not None and takes_output_only(loss)
        if self._loss_takes_output_only:
            self._loss_takes_model = False
        self._whole: Callable[..., Any] | None = None
        self._compile_whole()
        apart = not self._loss_takes_output_only
        name = target_name_of(loss) if apart and loss is not None else ""
        self._targets = () if loss is None else targets_of(loss)
        targets = max(1, len(self._targets))
        self._split = splitter(model, with_target=apart, with_labels=not apart, target_name=name, targets=targets)
        # Without a loss a mapping keeps its labels for a model that takes them (Hugging Face): it computes its own.
        self._split_mapping = splitter(model, with_target=apart and loss is not None, target_name=name)
        of_batch = loss is not None and takes_output_and_batch(loss)
        self._target_of: Callable[[Any], Any] = whole_batch if of_batch else self._target_in
        may_try = loss is not None and unwrapped(model) is model and not iterator_of(loss)  # a try would use a value up
        self._target_is_open = apart and may_try
        self._precision_is_open = plan.autocast != "none" and may_try and may_refuse_autocast(self.loss_function)
        takes_labels = positional_count(model) != positional_count(model, with_labels=True)
        self._own_loss_is_open = loss is None and takes_labels and unwrapped(model) is model

    def forward(self, batch: Any) -> Any:
        """The model's output; the whole loss when the loss takes the model or is compiled with it."""
        self.settle_loss(batch)
        with self.around_forward(), self._graphs(), self._creation(), self._attention(), self._autocast:
            if self._loss_takes_model:
                return (self._whole or self.loss_function)(self.model, batch)
            split = (self._split_mapping if isinstance(batch, Mapping) else self._split)(batch)
            if self._whole is not None:
                return self._whole(self._target_of(batch), *split.args, **split.kwargs)
            return self.model(*split.args, **split.kwargs)

    @contextmanager
    def _as_in_a_step(self) -> Iterator[None]:
        with self._graphs(), self._creation(), self._attention(), self._autocast:
            yield

    def settle_loss(self, batch: Any) -> str:
        """Find out by trying which form the loss has, where its signature leaves that open.

        Returns a sentence on what was found; empty when nothing was open. ``batch`` is on the device. Raises LossError
        when no form works.
        """
        in_full, inputs = self._settle_precision(batch), self._optional_inputs(batch)
        form = self._settle_form(batch)
        return "; ".join(filter(None, (in_full, form, "" if self._loss_takes_model else inputs)))

    def _optional_inputs(self, batch: Any) -> str:
        """A sentence on parts of a batch that become inputs which the model can do without; once, else empty."""
        needed = positional_count(self.model)
        if not self._target_is_open or not isinstance(batch, tuple | list) or needed is None:
            return ""
        given = len(self._split(batch).args)
        if not needed < given < len(batch):
            return ""
        return f"the model gets the first {given} of the {len(batch)} parts of a batch, though it needs {needed}"

    def _settle_precision(self, batch: Any) -> str:
        """Compute a loss in float32 that PyTorch does not run under autocast, and say so; empty for any other."""
        is_open, self._precision_is_open = self._precision_is_open, False
        if not is_open or self._loss_takes_model:
            return ""
        with self._as_in_a_step(), undone(self.model, self.loss_function):
            failure = failure_of(lambda: self._loss_of_output(batch))
        if UNSAFE not in failure:
            return ""
        self.loss_function = in_float32(self.loss_function, self.plan.device_type)
        self._compile_whole()
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
        if self._loss_takes_model is not None:
            return ""
        with self._as_in_a_step():
            form, found = form_that_works(self.loss_function, self.model, batch, lambda: self._loss_of_output(batch))
        self._loss_takes_model = form
        self._compile_whole()
        return found

    def _settle_target(self, batch: Any) -> str:
        """Give the loss the target or the whole batch, and the model the labels too, whichever works.

        Returns a sentence that says so; empty where nothing has to change, or nothing works.
        """
        if self._loss_takes_model or self._targets:
            return ""
        if self._target_of is not whole_batch and isinstance(self._split(batch).target, PartsLeft):
            return self._settle_parts(batch)
        by_place = isinstance(batch, torch.Tensor | tuple | list) and not hasattr(batch, "_fields")
        signature_tells = by_place and self._loss_takes_model is False
        if signature_tells and self._target_of is not whole_batch:
            return ""
        first = self._split_mapping, self._target_of
        with self._as_in_a_step():
            found = next((form for form in self._forms(batch) if self._works(batch, *form)), first)
        self._split_mapping, self._target_of = found
        if found == first:
            return ""
        self._loss_takes_model = False
        self._compile_whole()
        of_model = "the whole batch" if found[0] == self._mapping_itself else "the labels too"
        told = [f"the model gets {of_model}"] if found[0] is not first[0] else []
        if found[1] is not first[1]:
            told.append(f"the loss gets {'the whole batch' if found[1] is whole_batch else 'the target'}")
        return f"{' and '.join(told)}: the loss works only so, and a try worked"

    def _settle_parts(self, batch: Any) -> str:
        """Give the loss the parts of a batch that the model has no inputs for, one of them, or the whole batch.

        Returns a sentence on which; empty where nothing works. Raises LossError where several ways give other losses.
        """
        loss, count = self.loss_function, len(self._split(batch).target)
        first = len(batch) - count + 1
        parts = [(loss_of_part(loss, index), self._target_in, f"part {first + index}") for index in range(count)]
        ways = [(loss, self._target_in, f"parts {first} to {len(batch)}"), *parts, (loss, whole_batch, "the whole")]
        working = []
        with self._as_in_a_step():
            for way in ways:
                self.loss_function, self._target_of = way[:2]
                if (value := self._value(batch)) is not None:
                    working.append((way, value))
        self.loss_function, self._target_of = working[0][0][:2] if working else ways[0][:2]
        if not working:
            return ""
        told = " and ".join(way[2] for way, _ in working)
        if not all(torch.equal(value, working[0][1]) for _, value in working):
            raise LossError(
                f"the loss works with {told} of a batch of {len(batch)} parts, and gives different numbers.",
                "Write it as `def loss(output, batch)`, with these names: it gets the whole batch.",
            )
        self._loss_takes_model = False
        self._compile_whole()
        return f"the loss gets {working[0][0][2]} of a batch of {len(batch)} parts: it works only so, and a try worked"

    def _forms(self, batch: Any) -> list[tuple[Callable[[Any], SplitBatch], Callable[[Any], Any]]]:
        """The ways to tell inputs and target apart, the present one first."""
        splits, targets = [self._split_mapping], [self._target_of]
        whole = splitter(self.model, with_target=False)
        if isinstance(batch, Mapping) and whole(batch).kwargs.keys() != splits[0](batch).kwargs.keys():
            splits.append(whole)
        if isinstance(batch, Mapping):
            splits.append(self._mapping_itself)
        targets.append(self._target_in if self._target_of is whole_batch else whole_batch)
        return [(split, target) for split in splits for target in targets]

    def _mapping_itself(self, batch: Any) -> SplitBatch:
        """A mapping as the one input of a model."""
        return SplitBatch((batch,), {})

    def _works(self, batch: Any, split: Callable[[Any], SplitBatch], target_of: Callable[[Any], Any]) -> bool:
        """Whether a way to tell inputs and target apart gives a loss. What the try changes is undone."""
        self._split_mapping, self._target_of = split, target_of
        return self._value(batch) is not None

    def _value(self, batch: Any) -> torch.Tensor | None:
        """The loss of a try, which is undone; None where it gives none."""
        found: list[Any] = []

        def tried() -> Any:
            found.append(self._loss_of_output(batch))
            return found[0]

        with undone(self.model, self.loss_function):
            failure = failure_of(tried)
            number = None if failure else number_in(found[0])
            return None if number is None else number.detach().clone()

    def _leave_target_to_model(self, batch: Any) -> str:
        """Give the model its target too where it returns a loss then, as ``forward(x, targets=None)`` may.

        Returns a sentence that says so; empty where it returns none, or one number without the target too.
        """
        whole = splitter(self.model, with_target=False, with_labels=True)
        if len(whole(batch).args) != len(batch):
            return ""

        def gives_loss(split: SplitBatch) -> bool:
            with undone(self.model):
                return not failure_of(lambda: own_loss_in(self.model(*split.args, **split.kwargs)))

        with self._as_in_a_step():
            if not gives_loss(whole(batch)) or gives_loss(self._split(batch)):
                return ""
        self._split = self._split_mapping = whole
        self.loss_function, self._loss_takes_output_only = own_loss_in, True
        self._compile_whole()
        return "the model gets the target too: no loss was given, and so it returns its own"

    @property
    def loss_is_open(self) -> bool:
        """Whether a try has to tell which form the loss has, or in which precision it can be computed."""
        settled = self._loss_takes_model is not None and not self._target_is_open
        return not settled or self._own_loss_is_open or self._precision_is_open

    @property
    def loss_is_apart(self) -> bool:
        """Whether the forward pass ends with the model's output, and the loss is computed from that."""
        return self._loss_takes_model is False and self._whole is None

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

        if self._loss_takes_model:
            return of_model
        if self._loss_takes_output_only or self._targets:
            return loss
        if self._target_of is whole_batch:
            return of_batch
        # By the loss's own name for its target it is found in a mapping.
        name = target_name_of(loss)
        names = ("output", "target" if name in ("", "batch", "output") else name)
        places = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        of_output.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
        return of_output

    def _loss_of_output(self, batch: Any) -> Any:
        split = (self._split_mapping if isinstance(batch, Mapping) else self._split)(batch)
        return self._loss_of(self.model(*split.args, **split.kwargs), self._target_of(batch))

    def _target_in(self, batch: Any) -> Any:
        target = self._split(batch).target
        if self._targets:
            return self._several_in(batch, target)
        # Without a loss the first of several is it.
        return target[0] if isinstance(target, PartsLeft) and self.loss_function is default_loss else target

    def _several_in(self, batch: Any, target: Any) -> tuple[Any, ...]:
        """The targets of a loss that needs several, in its order. Raises LossError where a batch has others."""
        names = self._targets
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
        return self.loss_function(output) if self._loss_takes_output_only else self.loss_function(output, target)

    def _compile_whole(self) -> None:
        """Put forward pass and loss into one compiled function, once the loss's form is known."""
        if not self.plan.compiles_loss or self._loss_takes_model is None:
            return
        model, loss, of_output_only = self.model, self.loss_function, self._loss_takes_output_only

        def whole(target: Any, *args: Any, **kwargs: Any) -> Any:
            output = model(*args, **kwargs)
            return loss(output) if of_output_only else loss(output, target)

        plain = loss if self._loss_takes_model else whole
        self._whole = unless_hooks_differ(model, compiled_call(plain, self.plan), plain)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss of an output. Raises LossError when the loss function returns anything else."""
        if self._loss_takes_model or self._whole is not None:
            return loss_in(output)
        with self._graphs(), self._creation(), self._autocast:
            return loss_in(self._loss_of(output, self._target_of(batch)))
