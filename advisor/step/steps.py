"""One step of a loop, eager or compiled, made of the objects and the plan: the same code in trials and exported files.

The phases of a step are methods, so that the instrumented pass times exactly what the timed loop runs.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.recipe.plan import StepPlan
from advisor.step.calls import splitter
from advisor.step.collector import Collector
from advisor.step.contexts import Planned, evaluating, grad_mode
from advisor.step.loss_call import LossCall
from advisor.step.nested import map_tensors, mover
from advisor.step.parallel import synchronise_gradients

CLIP_FOREACH = {"default": None, "foreach": True, "for-loop": False}


class TrainStep(LossCall):
    """A training step: zero_grad, forward, loss, backward, optimizer. Called with a batch it returns the detached loss.

    ``scaler`` is the gradient scaler, None without one. ``state_dict`` and ``load_state_dict`` hold what a checkpoint
    needs beside the model and the optimizer: the scaler's state, and how many batches of an update are in.
    ``optimizer_step`` runs in place of the optimizer's own ``step``. Gradients are clipped over the optimizer's
    parameters. Raises ValueError for an optimizer that calls the loss itself.
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
        super().__init__(model, loss, plan)
        self.optimizer = optimizer
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.scaler = torch.amp.GradScaler(plan.device_type) if plan.scales_gradients else None
        # A norm is summed in the order of a loop that clips ``model.parameters()``: another one rounds otherwise.
        self._place_in_model = {parameter: place for place, parameter in enumerate(model.parameters())}
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
            # Memory of a graph may not be added to once the next step has begun.
            drops = self.plan.zero_grad == "none" or self._marks_steps
            self.optimizer.zero_grad(set_to_none=drops)
            # With zeros for a gradient, weight decay and momentum would go on moving what the loop has frozen.
            for parameter in () if drops else self.parameters:
                if not parameter.requires_grad:
                    parameter.grad = None

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the (scaled) loss, or of its part in the update."""
        if self.plan.accumulate > 1:
            loss = loss / self.plan.accumulate
        # Activation checkpoints run parts of the forward pass again: with the same kernels.
        with self._attention():
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
            last = len(self._place_in_model)
            parameters = sorted(self.parameters, key=lambda parameter: self._place_in_model.get(parameter, last))
            foreach = CLIP_FOREACH[self.plan.clip_grad]
            torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip_norm, foreach=foreach)

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
        if self.plan.no_sync:
            synchronise_gradients(self.model, self._accumulated + 1 == self.plan.accumulate)
        loss = self.loss(self.forward(batch), batch)
        self.backward(loss)
        self.update()
        # The next step overwrites a loss that a graph computed.
        return loss.detach().clone() if self._marks_steps else loss.detach()

    def begin_graphs(self) -> None:
        """Let the compiler's graphs overwrite the results of the last step, once its gradients are cleared."""
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step: move the batch, run, return the detached loss."""
        moved = self.to_device(batch)
        loss = self._run(moved)
        if self.plan.empty_cache == "every_step_with_del":
            del moved  # what nothing refers to any more, emptying the cache returns to the driver
        self.after(loss)
        return loss


class InferStep(Planned):
    """A forward pass in the grad mode that the plan says; called with a batch, the output.

    The output is the caller's: no later call changes it. A step that ``evaluates`` puts a model in training mode into
    evaluation mode for the pass and gives it its mode back, each of its modules its own.
    """

    def __init__(
        self, model: torch.nn.Module, plan: StepPlan, *, with_target: bool = False, evaluates: bool = False
    ) -> None:
        super().__init__(model, plan)
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.evaluates = evaluates
        self._split = splitter(model, with_target=with_target)
        self._collect = collector_of(plan)

    def begin_graphs(self) -> None:
        """Let the compiler's graphs overwrite the results of the last step: the caller has copies of them."""
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()

    def forward(self, batch: Any) -> Any:
        """The model's output."""
        if self.evaluates and self.model.training:
            with evaluating(self.model):
                return self._forward(batch)
        return self._forward(batch)

    def _forward(self, batch: Any) -> Any:
        grad = grad_mode(self.plan.runs_under)
        with self.around_forward(), grad, self._creation(), self._attention(), self._autocast:
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


def collector_of(plan: StepPlan) -> Callable[[], None]:
    """Return the function that runs Python's garbage collector after a step, as the plan says."""
    return leave_to_python if plan.collector == "default" else Collector(plan.collector)


def leave_to_python() -> None:
    """Leave garbage collection to Python: do nothing after a step."""


class OwnStep(InferStep):
    """A function ``step(batch)`` of the user's. Called with a batch it returns what the function returns.

    The batch is brought to the device in the layout and type that the plan says. Autocast, the attention kernel, the
    device of new tensors and the grad mode are contexts around the whole step. Autocast keeps no casts of weights: the
    step may change them between two calls of the model. Graphs of compiled code are not replayed.
    """

    def __init__(self, function: Callable[[Any], Any], model: torch.nn.Module, plan: StepPlan) -> None:
        super().__init__(model, plan)
        self.function = function
        if plan.autocast != "none":
            dtype = getattr(torch, plan.autocast)
            self._autocast = torch.autocast(plan.device_type, dtype=dtype, cache_enabled=False)

    def _forward(self, batch: Any) -> Any:
        grad = grad_mode(self.plan.runs_under)
        with self.around_forward(), grad, self._creation(), self._attention(), self._autocast:
            return self.function(batch)

    def run(self, batch: Any) -> Any:
        """Run a whole step on a batch that is on the device already."""
        result = self.forward(batch)
        self.after()
        return result
