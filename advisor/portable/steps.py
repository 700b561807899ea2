"""One step of a loop, eager or compiled, made of the objects and the plan: the same code in trials and exported files.

The phases of a step are methods, so that the instrumented pass times exactly what the timed loop runs.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from advisor.portable.calls import PartsLeft, SplitBatch, positional_count, splitter
from advisor.portable.collector import Collector
from advisor.portable.compiled_module import (
    MODELS_WITH_GRAPHS,
    WITHOUT_GRAPHS,
    begin_step,
    check_parameters_anew,
    leave_graphs_out,
    replaying_graphs,
)
from advisor.portable.compiling import compiled_call
from advisor.portable.contexts import attention_of, autocast_of, creation_of, evaluating, grad_mode
from advisor.portable.losses import (
    UNSAFE,
    LossError,
    default_loss,
    failure_of,
    form_that_works,
    in_float32,
    loss_in,
    loss_of_part,
    may_refuse_autocast,
    number_in,
    own_loss_in,
    takes_model,
    takes_output_and_batch,
    takes_output_only,
    target_name_of,
    undone,
    whole_batch,
)
from advisor.portable.nested import map_tensors, mover
from advisor.portable.parallel import synchronise_gradients, unwrapped
from advisor.portable.plan import StepPlan
from advisor.portable.watching import REQUIRES_GRAD, is_installed

CLIP_FOREACH = {"default": None, "foreach": True, "for-loop": False}


class TrainStep:
    """A training step: zero_grad, forward, loss, backward, optimizer. Called with a batch it returns the detached loss.

    ``scaler`` is the gradient scaler, None without one. ``state_dict`` and ``load_state_dict`` hold what a checkpoint
    needs beside the model and the optimizer: the scaler's state, and how many batches of an update are in.
    ``optimizer_step`` runs in place of the optimizer's own ``step``, and each forward pass inside ``around_forward()``.
    Raises ValueError for an optimizer that calls the
    loss itself. Gradients are clipped over the optimizer's parameters.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        loss: Callable[..., Any] | None,
        plan: StepPlan,
        optimizer_step: Callable[[], Any] | None = None,
    ) -> None:
        if needs_closure(optimizer):
            raise ValueError(
                f"{type(optimizer).__name__} calls the loss itself, several times a step (a closure), which train_step "
                "cannot do. Keep your own loop: optimizer.step(closure) works on what prepare returns."
            )
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.scaler = torch.amp.GradScaler(plan.device_type) if plan.scales_gradients else None
        self.loss_function: Callable[..., Any] = loss or default_loss
        self._loss_takes_model = takes_model(loss) if loss is not None else False
        # Nobody else is to get the target then: the model takes what it needs of the batch.
        self._loss_takes_output_only = loss is not None and takes_output_only(loss)
        if self._loss_takes_output_only:
            self._loss_takes_model = False
        self._whole: Callable[..., Any] | None = None
        self._compile_whole()
        apart = not self._loss_takes_output_only
        name = target_name_of(loss) if apart and loss is not None else ""
        self._split = splitter(model, with_target=apart, with_labels=not apart, target_name=name)
        # Without a loss a mapping keeps its labels for a model that takes them (Hugging Face): it computes its own.
        self._split_mapping = splitter(model, with_target=apart and loss is not None, target_name=name)
        of_batch = loss is not None and takes_output_and_batch(loss)
        self._target_of: Callable[[Any], Any] = whole_batch if of_batch else self._target_in
        self._target_is_open = apart and loss is not None and unwrapped(model) is model
        lower = plan.autocast != "none" and unwrapped(model) is model
        self._precision_is_open = lower and loss is not None and may_refuse_autocast(loss)
        takes_labels = positional_count(model) != positional_count(model, with_labels=True)
        self._own_loss_is_open = loss is None and takes_labels and unwrapped(model) is model
        self._autocast = autocast_of(plan)
        self._attention = attention_of(plan)
        self._creation = creation_of(plan)
        self.around_forward: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._marks_steps = marks_steps(plan)
        self._graphs = replaying_graphs if self._marks_steps else nullcontext
        self._all_parameters = list(model.parameters()) if plan.compiles_with != "none" else []
        self._trained = self._trains()
        if self._marks_steps:
            MODELS_WITH_GRAPHS.add(model)
        self._optimizer_step = optimizer_step
        self._collect = collector_of(plan)
        self._loss_sum: torch.Tensor | None = None
        self._accumulated = 0  # batches since the last update

    @property
    def parameters(self) -> list[Any]:
        """The optimizer's parameters, those of groups that were added later among them."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs beside the model and the optimizer."""
        return {"scaler": self.scaler.state_dict() if self.scaler else None, "accumulated": self._accumulated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the state of a scaler is left out where this step has none, and the reverse."""
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))
        self._accumulated = state["accumulated"] % self.plan.accumulate

    def zero_grad(self) -> None:
        """Clear the gradients in the way that the plan says; those that are being added up stay."""
        if self._accumulated:
            return
        if self.plan.zero_grad == "manual":
            for parameter in self.parameters:
                parameter.grad = None
        else:
            # What a graph made may not be added to once the next step has begun.
            self.optimizer.zero_grad(set_to_none=self.plan.zero_grad == "none" or self._marks_steps)

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
        with (
            self._graphs(),
            self._creation(),
            self._attention(),
            self._autocast,
            undone(self.model, self.loss_function),
        ):
            failure = failure_of(lambda: self._loss_of_output(batch))
        if UNSAFE not in failure:
            return ""
        self.loss_function = in_float32(self.loss_function, self.plan.device_type)
        self._compile_whole()
        return "the loss is computed in float32, outside autocast, under which PyTorch refuses it"

    def _settle_form(self, batch: Any) -> str:
        """As :meth:`settle_loss`, for what is called with what."""
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
        with self._graphs(), self._creation(), self._attention(), self._autocast:
            form, found = form_that_works(self.loss_function, self.model, batch, lambda: self._loss_of_output(batch))
        self._loss_takes_model = form
        self._compile_whole()
        return found

    def _settle_target(self, batch: Any) -> str:
        """Give the loss the target or the whole batch, and the model the labels too, whichever works.

        Returns a sentence that says so; empty where nothing has to change, or nothing works.
        """
        if self._loss_takes_model:
            return ""
        if self._target_of is not whole_batch and isinstance(self._split(batch).target, PartsLeft):
            return self._settle_parts(batch)
        by_place = isinstance(batch, torch.Tensor | tuple | list) and not hasattr(batch, "_fields")
        signature_tells = by_place and self._loss_takes_model is False
        if signature_tells and self._target_of is not whole_batch:
            return ""
        first = self._split_mapping, self._target_of
        with self._graphs(), self._creation(), self._attention(), self._autocast:
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
        with self._graphs(), self._creation(), self._attention(), self._autocast:
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
        """A mapping as the one input of a model that reads what it needs off it."""
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

        with self._graphs(), self._creation(), self._attention(), self._autocast:
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

        if self._loss_takes_output_only:
            return loss
        if self._loss_takes_model:
            return of_model
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
        # Without a loss the first of several is it.
        return target[0] if isinstance(target, PartsLeft) and self.loss_function is default_loss else target

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

        self._whole = compiled_call(loss if self._loss_takes_model else whole, self.plan)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss of an output. Raises LossError when the loss function returns anything else."""
        if self._loss_takes_model or self._whole is not None:
            return loss_in(output)
        with self._graphs(), self._creation(), self._autocast:
            return loss_in(self._loss_of(output, self._target_of(batch)))

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the (scaled) loss, or of its part in the update."""
        if self.plan.accumulate > 1:
            loss = loss / self.plan.accumulate
        # Activation checkpoints run parts of the forward pass again: with the same kernels.
        with self._graphs(), self._attention():
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self) -> None:
        """The optimizer's step, after clipping the gradients where the plan says so, once enough batches are in."""
        self._accumulated = (self._accumulated + 1) % self.plan.accumulate
        if self._accumulated:
            return
        if self.scaler is None:
            self._clip()
            # Looked up each time: a scheduler that is made later puts a method of its own in place of this one.
            (self._optimizer_step or self.optimizer.step)()
        else:
            if self.plan.clip_norm is not None:
                self.scaler.unscale_(self.optimizer)
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _clip(self) -> None:
        """Clip the gradients. The host does not read the norm, so that the step can be captured."""
        if self.plan.clip_norm is not None:
            foreach = CLIP_FOREACH[self.plan.clip_grad]
            torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip_norm, foreach=foreach)

    def after(self, loss: torch.Tensor) -> None:
        """Do the plan's work after an update; usually nothing."""
        if self.plan.loss_item == "every_step":
            loss.item()
        elif self.plan.loss_item == "accumulated":
            self._loss_sum = loss.clone() if self._loss_sum is None else self._loss_sum.add_(loss)
        if self.plan.empty_cache != "never" and self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._collect()

    def run(self, batch: Any) -> torch.Tensor:
        """Run a whole step on a batch that is on the device already."""
        loss = self._run(batch)
        self.after(loss)
        return loss

    def _run(self, batch: Any) -> torch.Tensor:
        self.zero_grad()
        self.begin_graphs()
        self._compile_anew_when_unfrozen()
        if self.plan.no_sync:
            synchronise_gradients(self.model, self._accumulated + 1 == self.plan.accumulate)
        loss = self.loss(self.forward(batch), batch)
        self.backward(loss)
        self.update()
        # The next step overwrites a loss that a graph computed.
        return loss.detach().clone() if self._marks_steps else loss.detach()

    def begin_graphs(self) -> None:
        """Let the compiler's graphs overwrite what they returned in the last step, once its gradients are cleared."""
        if self._marks_steps:
            begin_step(self.device)

    def _trains(self) -> tuple[bool, ...]:
        return tuple(map(REQUIRES_GRAD, self._all_parameters))

    def _compile_anew_when_unfrozen(self) -> None:
        """Have compiled code made for other parameters when layers were frozen or unfrozen."""
        if self._trained != (trained := self._trains()):
            self._trained = trained
            check_parameters_anew(self.model)

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step: move the batch, run, return the detached loss."""
        moved = self.to_device(batch)
        loss = self._run(moved)
        if self.plan.empty_cache == "every_step_with_del":
            del moved  # what nothing refers to any more, emptying the cache returns to the driver
        self.after(loss)
        return loss


class InferStep:
    """A forward pass in the grad mode that the plan says; called with a batch, the output.

    The output is the caller's: no later call changes it. A step that ``evaluates`` puts a model in training mode into
    evaluation mode for the pass and gives it its mode back, each of its modules its own.
    """

    def __init__(
        self, model: torch.nn.Module, plan: StepPlan, *, with_target: bool = False, evaluates: bool = False
    ) -> None:
        self.model = model
        self.plan = plan
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.evaluates = evaluates
        self._split = splitter(model, with_target=with_target)
        self._autocast = autocast_of(plan)
        self._attention = attention_of(plan)
        self._creation = creation_of(plan)
        self.around_forward: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._marks_steps = marks_steps(plan)
        self._graphs = replaying_graphs if self._marks_steps else nullcontext
        self._collect = collector_of(plan)
        if self._marks_steps:
            MODELS_WITH_GRAPHS.add(model)
        self._hooks = [hooks for part in model.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)]

    def begin_graphs(self) -> None:
        """Let the compiler's graphs overwrite what they returned in the last step, of which the caller has a copy."""
        if not self._marks_steps:
            return
        hold_graphs = self.plan.runs_under == "grad"
        if hold_graphs and any(not is_installed(hook) for hooks in self._hooks for hook in hooks.values()):
            leave_graphs_out("a hook of a layer may keep an output beyond its step")
        begin_step(self.device, outputs_hold_graphs=hold_graphs)

    def forward(self, batch: Any) -> Any:
        """The model's output."""
        if self.evaluates and self.model.training:
            with evaluating(self.model):
                return self._forward(batch)
        return self._forward(batch)

    def _forward(self, batch: Any) -> Any:
        grad = grad_mode(self.plan.runs_under)
        with self.around_forward(), grad, self._graphs(), self._creation(), self._attention(), self._autocast:
            split = self._split(batch)
            return self.model(*split.args, **split.kwargs)

    def run(self, batch: Any) -> Any:
        """Run a whole step on a batch that is on the device already."""
        self.begin_graphs()
        output = self.forward(batch)
        if self._marks_steps:
            output = map_tensors(torch.clone, output)  # the next call overwrites the graph's own
        self.after()
        return output

    def after(self) -> None:
        """Do the plan's work after a pass; usually nothing."""
        self._collect()

    def __call__(self, batch: Any) -> Any:
        """One step: move the batch, run, return the output."""
        return self.run(self.to_device(batch))


def start_training(model: torch.nn.Module) -> None:
    """Put a model into training mode unless it is: its layers that are frozen in evaluation mode stay so."""
    if not model.training:
        model.train()


def needs_closure(optimizer: Any) -> bool:
    """Whether the optimizer's step must be given a function that computes the loss."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def mover_of(plan: StepPlan) -> Callable[[Any], Any]:
    """A function that brings a batch into the place, layout and type that the plan says."""
    return mover(
        torch.device(plan.device),
        non_blocking=plan.non_blocking,
        memory_format=plan.memory_format,
        dtype=plan.input_dtype,
    )


def marks_steps(plan: StepPlan) -> bool:
    """Whether a step tells the compiler's CUDA graphs that it begins, and what they return has to be copied."""
    return plan.compile_mode in WITHOUT_GRAPHS and plan.device_type == "cuda"


def collector_of(plan: StepPlan) -> Callable[[], None]:
    """Return the function that runs Python's garbage collector after a step, as the plan says."""
    return leave_to_python if plan.collector == "default" else Collector(plan.collector)


def leave_to_python() -> None:
    """Nothing: Python collects when it sees fit."""
