"""One step of a loop, made from the user's objects and the plan: training, inference, or the user's own step.

The phases of a step are methods, so that the profile times exactly the same calls as the timed loop.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from advisor.recipe import MODES_WITH_GRAPHS, Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.batch import map_tensors, mover, splitter, tensors_of
from advisor.step.compile import compiled_call, compiler_arguments
from advisor.step.loss import LossCall, LossError, LossForm, is_number, loss_in, number_in, returned
from advisor.step.optimizer import make_capturable, needs_closure, optimizers_in
from advisor.step.spread import synchronise_gradients

Loss = Callable[..., Any] | None
GRAD_CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "caller": nullcontext,
}


class Step:
    """A model with a plan, which sets how batches are moved and the contexts of the forward pass."""

    caches_casts = True  # whether autocast casts each weight only once per forward pass
    compute: Callable[..., Any]

    def __init__(self, model: nn.Module, plan: StepPlan) -> None:
        self.model = model
        self.plan = plan
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.around_forward: Callable[[], AbstractContextManager[Any]] = nullcontext
        # If compiled code replays CUDA graphs, each step is announced to it, and results are copied.
        self._marks_steps = plan.compile_mode in MODES_WITH_GRAPHS and plan.device_type == "cuda"

    @contextmanager
    def contexts(self) -> Iterator[None]:
        """The plan's contexts around a forward pass: the device of new tensors, and autocast."""
        with ExitStack() as stack:
            stack.enter_context(self.around_forward())
            if self.plan.create_on_device:
                stack.enter_context(torch.device(self.plan.device))
            if self.plan.autocast != "none":
                dtype = getattr(torch, self.plan.autocast)
                stack.enter_context(torch.autocast(self.plan.device_type, dtype, cache_enabled=self.caches_casts))
            yield

    def begin_graphs(self) -> None:
        """Tell the compiler's own CUDA graphs that a step begins and may overwrite the last step's results."""
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()

    def run(self, batch: Any) -> Any:
        """Run a whole step on a batch that is already on the device."""
        result = self.compute(batch)
        if self.plan.empty_cache == "every_step_with_del":
            del batch  # so that empty_cache() can return its memory to the driver
        return self.finish(result)

    def finish(self, result: Any) -> Any:
        """Do the work after a step, and return the step's result."""
        return result

    def __call__(self, batch: Any) -> Any:
        """Move the batch to the device, run a step, and return the detached loss or the output."""
        return self.run(self.to_device(batch))


class TrainStep(Step):
    """A training step: zero_grad, forward, loss, backward, optimizer. Called with a batch it returns the detached loss.

    ``form`` is the form of the loss; if None, its signature decides. ``scaler`` is the gradient scaler, if any.
    ``state_dict`` and ``load_state_dict`` hold the rest of a checkpoint besides model and optimizer. Raises ValueError
    for an optimizer that calls the loss itself, and for a CUDA graph with an optimizer that is not PyTorch's.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, loss: Loss, plan: StepPlan, form: LossForm | None = None
    ) -> None:
        if needs_closure(optimizer):
            raise ValueError(
                f"{type(optimizer).__name__} calls the loss itself, several times in each step (a closure), which "
                "train_step cannot do. Keep your own loop: optimizer.step(closure) works with prepare's results."
            )
        if plan.cuda_graph and not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(
                "step.cuda_graph needs a torch.optim.Optimizer, but this is a wrapper: pass the optimizer inside the "
                "wrapper, or leave step.cuda_graph out."
            )
        super().__init__(model, plan)
        self.optimizer = optimizer
        self.call = LossCall(model, loss, form)
        # A loss that calls the model itself may change the weights between two calls (SAM does).
        self.caches_casts = self.call.form is not LossForm.MODEL_BATCH
        self.scaler = torch.amp.GradScaler(plan.device_type) if plan.scales_gradients else None
        self._whole: Callable[[Any], Any] | None = None
        if plan.compiles_loss:
            self._whole = self.call.compiled(lambda call: compiled_call(call, model, **compiler_arguments(plan)))
        if plan.cuda_graph:
            make_capturable(optimizer, self.device)
        self._loss_sum: torch.Tensor | None = None
        self._accumulated = 0  # the number of batches since the last update
        self._begun = 0  # the number of steps that have begun

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The optimizer's parameters, including groups that were added later."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state, and the number of batches accumulated since the last update."""
        return {"scaler": self.scaler.state_dict() if self.scaler else None, "accumulated": self._accumulated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. A scaler's state is ignored if the step or the checkpoint has no scaler."""
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))
        self._accumulated = state["accumulated"] % self.plan.accumulate

    def zero_grad(self) -> None:
        """Clear the gradients as the plan says, unless they are being accumulated."""
        self._begun += 1
        if self._begun == 2 and (problem := self._problem_of_gradients()):
            warnings.warn(problem, stacklevel=4)
        if self._accumulated:
            return
        if self.plan.zero_grad == "manual":
            for parameter in self.parameters:
                parameter.grad = None
        else:
            # Gradients in the memory of the compiler's graphs cannot be zeroed and reused in the next step.
            self.optimizer.zero_grad(set_to_none=self.plan.zero_grad == "none" or self._marks_steps)

    def _problem_of_gradients(self) -> str:
        """A problem of the plan that the gradients of the first step show; empty if there is none."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.requires_grad]
        there = [gradient for gradient in gradients if gradient is not None]
        exchanged_later = self.plan.no_sync and hasattr(self.model, "set_requires_gradient_sync")  # FSDP holds them
        if (
            self._accumulated
            and not exchanged_later
            and not any(gradient.is_sparse or bool(gradient.any()) for gradient in there)
        ):
            return "step.accumulate: the last gradients are gone. Do not call zero_grad(): the step does it."
        if self.plan.zero_grad == "zeros" and 0 < len(there) < len(gradients):
            return "step.zero_grad: zeros: some parameters got no gradient; with zeros, momentum and decay move them."
        return ""

    def forward(self, batch: Any) -> Any:
        """The model's output; or the loss, if the loss function calls the model or is compiled with it."""
        with self.contexts():
            return self._whole(batch) if self._whole is not None else self.call.forward(batch)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss of an output. Raises LossError if the loss function does not return one."""
        if self._whole is not None:
            return loss_in(output)
        if self.plan.autocast != "none" and isinstance(self.call.loss_function, nn.BCELoss):  # autocast refuses it
            return self.call.loss(map_tensors(torch.Tensor.float, output), batch)
        with self.contexts():
            return self.call.loss(output, batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of the (scaled) loss, divided by the number of accumulated batches."""
        if self.plan.accumulate > 1:
            loss = loss / self.plan.accumulate
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self) -> None:
        """Run the optimizer's step if enough batches are accumulated. Clip the gradients first if the plan says so."""
        self._accumulated = (self._accumulated + 1) % self.plan.accumulate
        if self._accumulated:
            return
        if self.plan.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def body(self, batch: Any, *, update: bool = True) -> torch.Tensor:
        """Run forward, loss, backward and ``update``, and return the detached loss. A graph records this method."""
        loss = self.loss(self.forward(batch), batch)
        self.backward(loss)
        if update:
            self.update()
        return loss.detach()

    def finish(self, result: torch.Tensor) -> torch.Tensor:
        """Do the plan's work after an update (usually none), and return the loss."""
        if self.plan.loss_item == "every_step":
            result.item()
        elif self.plan.loss_item == "accumulated":
            self._loss_sum = result.clone() if self._loss_sum is None else self._loss_sum.add_(result)
        if self.plan.empty_cache != "never" and self.device.type == "cuda":
            torch.cuda.empty_cache()
        return result

    def compute(self, batch: Any) -> torch.Tensor:
        """Run a step on a batch on the device, without ``finish``. Return the detached loss."""
        self.zero_grad()
        self.begin_graphs()
        if self.plan.no_sync:
            synchronise_gradients(self.model, self._accumulated + 1 == self.plan.accumulate)
        loss = self.body(batch)
        return loss.clone() if self._marks_steps else loss  # the next step overwrites a graph's loss


class InferStep(Step):
    """A forward pass in the plan's grad mode. Calling it with a batch returns the output.

    The output belongs to the caller: no later call changes it. If the step ``evaluates``, it switches a model in
    training mode to evaluation mode for the pass, and then restores the mode of each module.
    """

    def __init__(self, model: nn.Module, plan: StepPlan, *, with_target: bool = False, evaluates: bool = False) -> None:
        super().__init__(model, plan)
        self.evaluates = evaluates
        self.split_of = splitter(model, with_target=with_target)

    def forward(self, batch: Any) -> Any:
        """The model's output."""
        mode = evaluating(self.model) if self.evaluates and self.model.training else nullcontext()
        with mode, GRAD_CONTEXTS[self.plan.runs_under](), self.contexts():
            return self.call(batch)

    def call(self, batch: Any) -> Any:
        """Run the model on a batch, inside the plan's contexts."""
        split = self.split_of(batch)
        return self.model(*split.args, **split.kwargs)

    def body(self, batch: Any, *, update: bool = True) -> Any:
        """Run the forward pass. A graph records this method."""
        return self.forward(batch)

    def compute(self, batch: Any) -> Any:
        """Run the forward pass on a batch on the device, without ``finish``. Return the output."""
        self.begin_graphs()
        output = self.forward(batch)
        # The next call overwrites the results of the compiler's graphs, so copy them.
        return map_tensors(torch.clone, output) if self._marks_steps else output


class OwnStep(InferStep):
    """The user's function ``step(batch)``. Calling it with a batch returns the function's result.

    The batch is moved to the device in the plan's layout and type. Autocast, the device of new tensors and the grad
    mode are contexts around the whole step. Autocast does not cache cast weights, since the step may change them
    between two model calls. ``optimizers`` are the known optimizers of the function; ``result`` converts its result.
    """

    caches_casts = False

    def __init__(
        self,
        function: Callable[[Any], Any],
        model: nn.Module,
        plan: StepPlan,
        optimizers: Sequence[Any] = (),
        result: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(model, plan)
        self.function = function
        self.optimizers = list(optimizers)
        self._result = result

    def call(self, batch: Any) -> Any:
        """Run the user's function on a batch, inside the plan's contexts."""
        return self.function(batch)

    def finish(self, result: Any) -> Any:
        """Return the result of a step."""
        return result if self._result is None else self._result(result)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside this context, then restore the mode of each module."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def mover_of(plan: StepPlan) -> Callable[[Any], Any]:
    """A function that moves a batch to the plan's device, and converts it to the plan's layout and type."""
    device, memory_format = torch.device(plan.device), plan.memory_format
    return mover(device, non_blocking=plan.non_blocking, memory_format=memory_format, dtype=plan.input_dtype)


def make_step(components: Components, loss: Loss, *, form: LossForm | None = None) -> TrainStep | InferStep:
    """The step for a plan, without a CUDA graph (:func:`advisor.step.graph.captured` adds the graph)."""
    plan = components.plan
    if components.own_step is not None:
        result = loss_of_own if plan.mode is Mode.TRAIN else None
        return OwnStep(components.own_step, components.model, plan, optimizers_in(components.optimizer), result)
    if plan.mode is Mode.TRAIN:
        return TrainStep(components.model, components.optimizer, loss, plan, form)
    return InferStep(components.model, plan, with_target=loss is not None)


def loss_of_own(result: Any) -> torch.Tensor:
    """The detached loss in the result of the user's own step, or the sum of several losses. Trials compare it.

    Raises LossError if the step returns no loss.
    """
    numbers = [one for one in (number_in(result), number_in(_as_tensors(result))) if one is not None][:1]
    several = [part.detach() for part in numbers or tensors_of(result) if is_number(part)]
    if not several:
        raise LossError(
            f"the step returns {returned(result)}.",
            "Return the loss, or several losses as tensors. Their sum is compared between settings.",
        )
    return torch.stack([part.reshape(()).to(several[0].device) for part in several]).sum()


def _as_tensors(result: Any) -> Any:
    """The result of a step, with the Python numbers that may be its loss converted to tensors."""
    if isinstance(result, int | float) and not isinstance(result, bool):
        return torch.tensor(float(result))
    if isinstance(result, Mapping):
        return {"loss": _as_tensors(result["loss"])} if "loss" in result else result
    return type(result)(map(_as_tensors, result)) if type(result) in (list, tuple) else result
