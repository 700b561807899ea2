"""One step of a loop: eager, compiled, or captured whole in a CUDA graph. Built from the objects and the StepPlan.

The phases of a step are methods, so that the instrumented pass times exactly what the timed loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.errors import UsageError
from advisor.plan import StepPlan
from advisor.portable.collector import Collector
from advisor.recipe import Components
from advisor.records import Mode
from advisor.runtime.batches import copy_into, map_tensors, mover, signature_of, splitter
from advisor.runtime.compilation import compiled, compiled_call
from advisor.runtime.loss import default_loss, form_that_works, takes_model
from advisor.runtime.optimizers import TensorRates, compiled_step, make_capturable, mark_stepped, updates_without_host

# Libraries allocate their workspaces and compilers compile in the first steps; a capture must not see that.
EAGER_STEPS_BEFORE_CAPTURE = 3
_CUDA_GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
_CLIP_FOREACH = {"default": None, "foreach": True, "for-loop": False}
_ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# How PyTorch says that none of the permitted attention kernels can run a call.
_NO_ATTENTION = ("No available kernel", "No viable backend for scaled_dot_product_attention")

Step = Callable[[Any], torch.Tensor]


def finish_components(components: Components) -> None:
    """What follows from the plan for the objects: compile the model, make the optimizer capturable."""
    plan = components.plan
    if plan.compiles_with != "none":
        if plan.attention_backend != "auto":
            tell_attention_apart()
        components.model = compiled(components.model, plan)
    captured = plan.cuda_graph and plan.mode is Mode.TRAIN
    if (captured or plan.compile_optimizer) and components.optimizer is not None:
        make_capturable(components.optimizer, torch.device(plan.device))


def tell_attention_apart() -> None:
    """Switch off the one cache of the compiler, for this process, that does not tell attention kernels apart.

    Its keys leave out the permitted kernels, so a graph that was traced with another one would be taken from the disk
    (pytorch/pytorch#186458). The cache of generated code, which takes most of the time, stays on.
    """
    import torch._functorch.config

    torch._functorch.config.enable_autograd_cache = False


def make_step(components: Components, loss: Callable[..., Any] | None) -> TrainStep | InferStep | GraphedStep:
    """The step that the plan asks for. A step called with a batch runs once and returns the detached loss or output."""
    plan = components.plan
    step: TrainStep | InferStep
    if plan.mode is Mode.TRAIN:
        step = TrainStep(components.model, components.optimizer, loss, plan)
    else:
        step = InferStep(components.model, plan, with_target=loss is not None)
    return GraphedStep(step) if plan.cuda_graph else step


class TrainStep:
    """zero_grad, forward, loss, backward, optimizer."""

    def __init__(self, model: nn.Module, optimizer: Any, loss: Callable[..., Any] | None, plan: StepPlan) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self.scaler = GradScaler(plan.device_type) if plan.scales_gradients else None
        self._loss = loss or default_loss
        self._loss_takes_model = takes_model(loss) if loss is not None else False
        self._whole: Callable[..., Any] | None = None
        self._compile_whole()
        self._split = splitter(model, with_target=True)
        # Without a loss a mapping keeps its labels for a model that takes them (Hugging Face): it computes its own.
        self._split_mapping = splitter(model, with_target=loss is not None)
        self._autocast = _autocast(plan)
        self._attention = _attention(plan)
        self._creation = _creation(plan)
        self._marks_steps = plan.compile_mode in _CUDA_GRAPH_MODES and plan.device_type == "cuda"
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # Looked up anew in each step: a scheduler that is made later puts its own in place of it.
        self._optimizer_step = (
            compiled_step(optimizer, self.device) if plan.compile_optimizer else lambda: optimizer.step()
        )
        self._collect = _collector(plan)
        self._loss_sum: torch.Tensor | None = None
        self._accumulated = 0  # batches since the last update

    def zero_grad(self) -> None:
        """Clear the gradients in the way that the plan says; those that are being added up stay."""
        if self._accumulated:
            return
        if self.plan.zero_grad == "manual":
            for parameter in self._parameters:
                parameter.grad = None
        else:
            self.optimizer.zero_grad(set_to_none=self.plan.zero_grad == "none")

    def forward(self, batch: Any) -> Any:
        """The model's output; the whole loss when the loss takes the model or is compiled with it."""
        self.settle_loss(batch)
        with self._creation(), self._attention(), self._autocast:
            if self._loss_takes_model:
                return (self._whole or self._loss)(self.model, batch)
            split = (self._split_mapping if isinstance(batch, Mapping) else self._split)(batch)
            if self._whole is not None:
                return self._whole(self._split(batch).target, *split.args, **split.kwargs)
            return self.model(*split.args, **split.kwargs)

    def settle_loss(self, batch: Any) -> str:
        """Find out by trying which form the loss has, where its signature leaves that open.

        Returns a sentence on what was found; empty when nothing was open. ``batch`` is on the device. Raises
        TargetError when no form works.
        """
        if self._loss_takes_model is not None:
            return ""
        with self._creation(), self._attention(), self._autocast:
            form, found = form_that_works(self._loss, self.model, batch, lambda: self._loss_of_output(batch))
        self._loss_takes_model = form
        self._compile_whole()
        return found

    def _loss_of_output(self, batch: Any) -> Any:
        split = (self._split_mapping if isinstance(batch, Mapping) else self._split)(batch)
        return self._loss(self.model(*split.args, **split.kwargs), self._split(batch).target)

    def _compile_whole(self) -> None:
        """Put forward pass and loss into one compiled function, once the loss's form is known."""
        if not self.plan.compiles_loss or self._loss_takes_model is None:
            return
        model, loss = self.model, self._loss

        def whole(target: Any, *args: Any, **kwargs: Any) -> Any:
            return loss(model(*args, **kwargs), target)

        self._whole = compiled_call(loss if self._loss_takes_model else whole, self.plan)

    def loss(self, output: Any, batch: Any) -> torch.Tensor:
        """The scalar loss of an output."""
        if self._loss_takes_model or self._whole is not None:
            return cast("torch.Tensor", output)
        with self._creation(), self._autocast:
            return cast("torch.Tensor", self._loss(output, self._split(batch).target))

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the (scaled) loss, or of its part in the update."""
        if self.plan.accumulate > 1:
            loss = loss / self.plan.accumulate
        # Activation checkpoints run parts of the forward pass again: with the same attention kernel.
        with self._attention():
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self) -> None:
        """The optimizer's step, after clipping the gradients where the plan says so, once enough batches are in."""
        self._accumulated = (self._accumulated + 1) % self.plan.accumulate
        if self._accumulated:
            return
        if self.scaler is None:
            self._clip()
            self._optimizer_step()
        else:
            if self.plan.clip_norm is not None:
                self.scaler.unscale_(self.optimizer)
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _clip(self) -> None:
        """No host is asked whether the norm is finite, so that a step can be captured."""
        if self.plan.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.plan.clip_norm, foreach=_CLIP_FOREACH[self.plan.clip_grad])

    def after(self, loss: torch.Tensor) -> None:
        """What the loop does when the update is done, as the plan says; usually nothing."""
        if self.plan.loss_item == "every_step":
            loss.item()
        elif self.plan.loss_item == "accumulated":
            self._loss_sum = loss.clone() if self._loss_sum is None else self._loss_sum.add_(loss)
        if self.plan.empty_cache != "never" and self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._collect()

    def run(self, batch: Any) -> torch.Tensor:
        """A whole step on a batch that is on the device already."""
        loss = self._run(batch)
        self.after(loss)
        return loss

    def _run(self, batch: Any) -> torch.Tensor:
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()
        self.zero_grad()
        loss = self.loss(self.forward(batch), batch)
        self.backward(loss)
        self.update()
        return loss.detach()

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step: move the batch, run, return the detached loss."""
        moved = self.to_device(batch)
        loss = self._run(moved)
        if self.plan.empty_cache == "every_step_with_del":
            del moved  # what nothing refers to any more, emptying the cache returns to the driver
        self.after(loss)
        return loss


class InferStep:
    """A forward pass in the grad mode that the plan says."""

    def __init__(self, model: nn.Module, plan: StepPlan, *, with_target: bool = False) -> None:
        self.model = model
        self.plan = plan
        self.device = torch.device(plan.device)
        self.to_device = mover_of(plan)
        self._split = splitter(model, with_target=with_target)
        self._autocast = _autocast(plan)
        self._attention = _attention(plan)
        self._creation = _creation(plan)
        self._marks_steps = plan.compile_mode in _CUDA_GRAPH_MODES and plan.device_type == "cuda"
        self._collect = _collector(plan)

    def forward(self, batch: Any) -> Any:
        """The model's output."""
        with grad_mode(self.plan.runs_under), self._creation(), self._attention(), self._autocast:
            split = self._split(batch)
            return self.model(*split.args, **split.kwargs)

    def run(self, batch: Any) -> Any:
        """A whole step on a batch that is on the device already."""
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()
        output = self.forward(batch)
        self.after()
        return output

    def after(self) -> None:
        """What the loop does when the pass is done, as the plan says; usually nothing."""
        self._collect()

    def __call__(self, batch: Any) -> Any:
        """One step: move the batch, run, return the output."""
        return self.run(self.to_device(batch))


class GraphedStep:
    """A step captured in a CUDA graph on its fourth call and replayed from then on.

    The first calls run eagerly on a side stream and are steps like any other. A batch of another shape (a short last
    batch) runs eagerly. When the optimizer cannot be captured with a changing learning rate, its step stays outside.
    Raises UsageError on another device than CUDA.
    PyTorch documentation, CUDA semantics, CUDA Graphs.
    """

    def __init__(self, step: TrainStep | InferStep) -> None:
        self.step = step
        self.plan = step.plan
        self.device = step.device
        self.to_device = step.to_device
        if step.device.type != "cuda":
            raise UsageError(
                f"step.cuda_graph needs a CUDA GPU, and the model is on the device {step.device}.", "Leave it out."
            )
        self._stream = torch.cuda.Stream(step.device)
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static_batch: Any = None
        self._static_result: Any = None
        self._signature: tuple[Any, ...] = ()
        self._rates: TensorRates | None = None
        if isinstance(step, TrainStep) and updates_without_host(step.optimizer):
            self._rates = TensorRates(step.optimizer, step.device)

    def __call__(self, batch: Any) -> Any:
        """One step; replayed when the graph has been captured and the batch has its shapes."""
        signature = signature_of(batch)
        if self._graph is not None and signature == self._signature:
            copy_into(self._static_batch, batch)
            return self._replay()
        moved = self.to_device(batch)
        self._calls += 1
        if self._graph is not None or self._calls <= EAGER_STEPS_BEFORE_CAPTURE:
            return self._run_aside(moved)
        self._capture(moved)
        # Of the batch as it comes: moving it may change its type.
        self._signature = signature
        return self._replay()

    def _run_aside(self, batch: Any) -> Any:
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            # The graph writes into the gradients that it was captured with: an eager step must not replace them.
            result = self.step.run(batch) if self._graph is None else self._run_keeping_gradients(batch)
        current.wait_stream(self._stream)
        return result

    def _run_keeping_gradients(self, batch: Any) -> Any:
        if not isinstance(self.step, TrainStep):
            return self.step.run(batch)
        captured = [parameter.grad for parameter in self.step._parameters]
        result = self.step.run(batch)
        for parameter, gradient in zip(self.step._parameters, captured, strict=True):
            parameter.grad = gradient
        return result

    def _capture(self, batch: Any) -> None:
        self._static_batch = map_tensors(torch.clone, batch)
        graph = torch.cuda.CUDAGraph()
        step = self.step
        if isinstance(step, TrainStep):
            step.optimizer.zero_grad(set_to_none=True)
            if self._rates is not None:
                self._rates.refresh()
        torch.cuda.synchronize(self.device)
        # A loader's thread that pins memory calls CUDA meanwhile, which any other mode takes for a fault.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            if isinstance(step, TrainStep):
                loss = step.loss(step.forward(self._static_batch), self._static_batch)
                step.backward(loss)
                if self._rates is not None:
                    with self._rates.inside():
                        step.update()
                self._static_result = loss.detach()
            else:
                self._static_result = step.forward(self._static_batch)
        self._graph = graph

    def _replay(self) -> Any:
        assert self._graph is not None
        if self._rates is not None:
            self._rates.refresh()
        self._graph.replay()
        if self._rates is not None:
            mark_stepped(self._rates.optimizer)
        elif isinstance(self.step, TrainStep):
            self.step.update()
        # The next replay overwrites the graph's own result.
        result = map_tensors(torch.clone, self._static_result)
        if isinstance(self.step, TrainStep):
            self.step.after(result)
        else:
            self.step.after()
        return result


def mover_of(plan: StepPlan) -> Callable[[Any], Any]:
    """A function that brings a batch into the place, layout and type that the plan says."""
    return mover(
        torch.device(plan.device),
        non_blocking=plan.non_blocking,
        memory_format=plan.memory_format,
        dtype=plan.input_dtype,
    )


def _collector(plan: StepPlan) -> Callable[[], None]:
    """What runs Python's garbage collector after a step, as the plan says."""
    return _leave_to_python if plan.collector == "default" else Collector(plan.collector)


def _leave_to_python() -> None:
    """Nothing: Python collects when it sees fit."""


def _creation(plan: StepPlan) -> Callable[[], AbstractContextManager[Any]]:
    """What makes the context in which tensors are created on the plan's device, if it says so; a new one each time."""
    return (lambda: torch.device(plan.device)) if plan.create_on_device else nullcontext


def _attention(plan: StepPlan) -> Callable[[], AbstractContextManager[Any]]:
    """What makes the context in which only the plan's attention kernel may run; a new one for each use."""
    if plan.attention_backend == "auto":
        return nullcontext
    return lambda: _only_attention(plan.attention_backend)


@contextmanager
def _only_attention(name: str) -> Iterator[None]:
    """Permit one attention kernel. Raises RuntimeError that says so when it cannot run a call."""
    try:
        with sdpa_kernel(_ATTENTION[name]):
            yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _NO_ATTENTION):
            raise
        raise RuntimeError(
            f"the {name} attention kernel cannot run this model's attention: its type, head size, mask or dropout does "
            "not suit it, or the device does not"
        ) from error


def _autocast(plan: StepPlan) -> AbstractContextManager[Any]:
    if plan.autocast == "none":
        return nullcontext()
    return torch.autocast(plan.device_type, dtype=getattr(torch, plan.autocast))


def grad_mode(name: str) -> AbstractContextManager[Any]:
    """The context of a grad mode by its name in the plan."""
    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
    }
    return modes[name]()
