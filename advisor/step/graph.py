"""GraphedStep: a step that is captured in CUDA graphs and replayed. ``captured`` makes it from another step."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from advisor.errors import RefusedError, UsageError
from advisor.recipe.plan import AROUND_LOSS
from advisor.step.batch import copy_into, map_tensors, signature_of, tensors_of
from advisor.step.compile import unwrapped
from advisor.step.cuda_graph import CudaGraph, as_if_captured, forget_accumulators, reason_of
from advisor.step.loss import LossForm
from advisor.step.optimizer import TensorRates, make_capturable, updates_without_host
from advisor.step.step import OwnStep, Step, TrainStep
from advisor.step.watch import OPTIONS, PLAIN, Place, Saved, Watch, numbers_of_modules, objects_near, places_near

S = TypeVar("S", bound=Step)
# Eager steps before a capture: in the first steps, libraries allocate workspaces and compilers compile.
WARM_UP_STEPS = 3
# DistributedDataParallel makes the host wait to time its first ten steps, and orders its buckets in the second.
WARM_UP_STEPS_OF_DDP = 11
MOST_SIGNATURES = 8
AUDIT_EVERY = 1_000  # replays between two comparisons with an eager step
# A graph with fewer replays was not worth its capture: the next capture waits for twice as many eager steps.
_WORTH_A_CAPTURE = 50
_MOST_WARM_UP_STEPS = 1_000
_MANY_WARM_UP_STEPS = 40  # if more eager steps are needed before a capture, a warning says why
# The largest relative difference of losses and outputs between a replay and an eager step. Another order of additions
# differs by less, even in bfloat16; a number that a graph froze differs by more.
_SAME_RESULT = 1e-2
_SAME_ROUGHLY = 5e-2  # the same for the sizes of updates, and for compiled code, which rounds differently


class CaptureError(RefusedError):
    """A step cannot be captured in a CUDA graph. ``__cause__`` is PyTorch's error."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the step cannot be captured in a CUDA graph: {reason}.")


@dataclass(slots=True)
class Recorded:
    """A captured step: its graph, the batch that the graph reads, and the data for the work after a replay."""

    graph: Any
    batch: Any
    updates: bool  # the graph also makes the update, with the learning rates ``rates``
    rates: list[TensorRates]
    gradients: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # written by the graph
    # The parameters of other optimizers with such gradients, which are accumulated.
    others: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)  # parameters to whose old gradients the graph adds
    # If the loss stays outside: the graph of the backward pass, the outputs where it begins, and their gradients.
    backward: Any = None
    outputs: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor] = field(default_factory=list)


class GraphedStep:
    """A step that runs eagerly three times (with DDP 11 times), and is then captured in a CUDA graph and replayed.

    There is a graph for each signature of the batch, eight at most; batches of others run eagerly. The first replay is
    compared with an eager step from the same state. Learning rates are followed. Before each replay the step looks at
    what is cheap to look at, and is captured anew where it changed: training modes, parameters and which of them
    require gradients, the number of hooks, the optimizer's numbers, and plain numbers, texts and flags near the step
    (:mod:`advisor.step.watch`). After every 1,000 replays, unless random numbers are drawn or the step is the user's
    own, the loss is also computed eagerly, and a difference is treated the same. Else call :meth:`recapture`.

    A replay runs no Python. Tensors that the step stores in attributes are in the graph's memory, and the next replay
    overwrites them. The update stays outside the graph with a gradient scaler, with an optimizer that counts its steps
    on the host, or after a change of options other than the learning rate. A step that cannot be captured runs eagerly,
    with a warning. If it is ``required``, it raises CaptureError, or PyTorch's error if memory runs out.

    Other attributes are those of the step, such as ``plan``, ``scaler`` and ``state_dict``.
    """

    def __init__(self, step: Any, graph: Callable[[torch.device], Any] = CudaGraph, *, required: bool = False) -> None:
        step.around_forward = as_if_captured
        self.step = step
        self.reason = ""  # why the last graph was dropped, or why the step cannot be captured
        self.replays = 0
        self._make_graph, self._eager = graph, graph(step.device)
        self._required = required
        self._refused = self._warned = self._options_change = False
        self._own = isinstance(step, OwnStep)
        self._call = step.function if self._own else step.call.loss_function if isinstance(step, TrainStep) else None
        self._optimizers: list[Any] = [step.optimizer] if isinstance(step, TrainStep) else []
        self._usual = self._needed = WARM_UP_STEPS if unwrapped(step.model) is step.model else WARM_UP_STEPS_OF_DDP
        self._seen: dict[Any, int] = {}  # the number of eager steps for each signature of a batch
        self._recorded: dict[Any, Recorded] = {}
        self._watch: Watch | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    @property
    def captured(self) -> bool:
        """Whether there is a graph to replay."""
        return bool(self._recorded)

    def recapture(self, reason: str = "") -> None:
        """Drop all graphs. The step runs eagerly three times (with DDP 11 times), and is captured again.

        If a ``reason`` is given and the old graphs were hardly used, it runs eagerly for twice as many steps each time.
        """
        short = self.captured and self.replays < _WORTH_A_CAPTURE
        self._needed = min(2 * self._needed, _MOST_WARM_UP_STEPS) if short and reason else self._usual
        self.reason = reason
        self.replays = 0
        self._watch = None
        self._seen.clear()
        self._recorded.clear()
        if self._needed > _MANY_WARM_UP_STEPS:
            self._warn_once(f"the step is captured again and again: {reason}. Store this value in a tensor.")

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"step.cuda_graph: {text}", stacklevel=4)

    def __call__(self, batch: Any) -> Any:
        """Run one step: replay the graph for the batch if there is one; otherwise run eagerly, or capture."""
        key = (signature_of(batch), torch.is_grad_enabled())
        if self._watch is not None and (changed := self._watch.changed()):
            self._options_change = self._options_change or changed == OPTIONS
            self.recapture(changed)
        if (recorded := self._recorded.get(key)) is None:
            return self.step.finish(self._run_or_capture(key, self.step.to_device(batch)))
        copy_into(recorded.batch, batch)
        self.replays += 1
        is_audited = self.replays % AUDIT_EVERY == 0 and not self._own
        return self.step.finish(self._audited(recorded) if is_audited else self._replay(recorded))

    # --- eager steps and captures -------------------------------------------------------------------------------------

    def _run_or_capture(self, key: Any, batch: Any) -> Any:
        """Run a step, or capture it if enough steps with such a batch have run."""
        if self._refused:
            return self._run(batch)
        if key not in self._seen and len(self._seen) == MOST_SIGNATURES:
            self._warn_once(f"batches have more than {MOST_SIGNATURES} shapes: others run eagerly. Pad to few lengths.")
            return self._run(batch)
        if self._own and not self._seen:
            near = objects_near(torch.optim.Optimizer, self._call)
            self._optimizers = list(dict.fromkeys([*self.step.optimizers, *near]))
            for optimizer in self._optimizers:
                make_capturable(optimizer, self.step.device)
        if not self._seen and (self._own or isinstance(self.step, TrainStep)):
            forget_accumulators(self._modules(), self._trained())
        self._seen[key] = seen = self._seen.get(key, 0) + 1
        # A later shape needs only one eager step, to choose or compile kernels for this shape.
        needed = 1 if self._recorded else self._needed
        return self._run(batch) if seen <= needed else self._capture(key, batch)

    def _run(self, batch: Any) -> Any:
        return self._eager.warm_up(lambda: self.step.compute(batch))

    def _capture(self, key: Any, batch: Any) -> Any:
        """Run one step eagerly, capture it, and compare a replay from the same state. Return one of the results."""
        saved, before = self._saved(), self._near()
        buffers = [id(one) for module in self._modules() for one in module.buffers()]
        expected = self._run(batch)
        if buffers != [id(one) for module in self._modules() for one in module.buffers()]:
            self._give_up("it replaces a buffer in each step: write into the buffer instead, by copy_()")
            return expected
        drew, moved = (saved.drew(), saved.moved()) if saved else (True, None)
        parameters = [one for module in self._modules() for one in module.parameters()]
        gradients, after = {one: one.grad for one in (*self._trained(), *parameters)}, self._near()
        try:
            static = map_tensors(lambda one: one.detach().clone().requires_grad_(one.requires_grad), batch)
            recorded = self._record(static, gradients)
        except Exception as error:  # the user's code and CUDA may raise anything
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for place, value in after:
                place.put(value)
            self._give_up(reason_of(error), error)
            return expected
        self._recorded[key] = recorded
        optimizers = self._optimizers if recorded.updates else []
        self._watch = Watch(self.step.model, self._places(), optimizers, recorded.kept)
        if saved is None:  # the state is too large to copy, so the eager step's result is kept
            return expected
        saved.restore()
        result = self._replay(recorded)
        if drew or (_agree(result, expected, _SAME_RESULT) and _agree(saved.moved(), moved, _SAME_ROUGHLY)):
            return result
        saved.restore()
        for place, value in before:
            place.put(value)
        self._give_up("a replay and the step have different results: the step reads values that a graph cannot follow")
        return self._run(batch)

    def _give_up(self, reason: str, error: Exception | None = None) -> None:
        """Run the step eagerly from now on, unless it is required to be captured."""
        self.recapture(reason)
        self._refused = True
        if isinstance(error, torch.OutOfMemoryError) and self._required:
            raise error
        if self._required:
            raise CaptureError(reason) from error
        warnings.warn(f"step.cuda_graph is left out, and the step runs without a graph: {reason}.", stacklevel=5)

    def _record(self, batch: Any, gradients: Mapping[torch.Tensor, Any]) -> Recorded:
        """Capture a step on this batch. Its gradients are in the graph's memory, and each replay overwrites them.

        ``gradients`` are the earlier gradients of all parameters. Raises ValueError if a number changes in every step.
        """
        numbers = [(place, value) for place in self._places() if type(value := place.value()) in PLAIN]
        updates, device = self._updates_inside, self.step.device
        rates = [TensorRates(one, device) for one in self._optimizers if updates and updates_without_host(one)]
        recorded = Recorded(self._make_graph(device), batch, updates, rates)
        for parameter in () if self._own else gradients:
            parameter.grad = None
        with ExitStack() as stack:
            for each in rates:
                stack.enter_context(each.inside())
            self._capture_calls(recorded, next((one.graph for one in self._recorded.values()), None))
        for place, value in numbers:
            if [place.value()] != [value]:
                raise ValueError(f"{place.name} changes in each step, but a replay runs no Python")
        trained = set(self._trained())
        for parameter, gradient in gradients.items():
            made = parameter.grad
            if made is not None and made is gradient:
                recorded.kept.append(parameter)
            elif made is not None and (self._own or parameter in trained):
                recorded.gradients.append((parameter, made))
            elif made is not None:
                recorded.others.append((parameter, made))
                parameter.grad = gradient
        return recorded

    def _capture_calls(self, recorded: Recorded, beside: Any) -> None:
        """Capture the calls of a step, in the memory of the graph ``beside`` if there is one."""
        device = self.step.device.type
        generators = [one for one in objects_near(torch.Generator, self._call) if one.device.type == device]
        recorded.graph.capture(lambda: self.step.body(recorded.batch, update=recorded.updates), generators, beside)

    @property
    def _updates_inside(self) -> bool:
        """Whether the graph also makes the update."""
        alone = getattr(self.step, "scaler", None) is None and not self._options_change
        return self._own or (alone and all(map(updates_without_host, self._optimizers)))

    def _trained(self) -> list[torch.Tensor]:
        """The parameters of the optimizers."""
        return [one for optimizer in self._optimizers for group in optimizer.param_groups for one in group["params"]]

    def _modules(self) -> list[torch.nn.Module]:
        """The model, and modules near the step (another model that the loss calls, for example)."""
        return [self.step.model, *objects_near(torch.nn.Module, self._call)]

    def _places(self) -> list[Place]:
        """The places of values near the step: in its loss or function, and attributes of the model's modules."""
        return [*places_near(self._call), *numbers_of_modules(self.step.model)]

    def _near(self) -> list[tuple[Place, Any]]:
        """The values near the step, and the attributes of all modules."""
        held = [Place(vars(one), name) for module in self._modules() for one in module.modules() for name in vars(one)]
        return [(place, place.value()) for place in (*places_near(self._call), *held)]

    def _saved(self) -> Saved | None:
        """Copies of the tensors that a step changes; None if they need more than a quarter of the free memory."""
        found: list[Any] = [one for module in self._modules() for one in (*module.parameters(), *module.buffers())]
        found += [one.grad for one in found]  # a step may add to gradients
        found += [value for one in self._optimizers for each in one.state.values() for value in each.values()]
        tensors = {id(one): one for one in found if isinstance(one, torch.Tensor) and one.layout is torch.strided}
        needed, device = sum(tensor.nbytes for tensor in tensors.values()), self.step.device
        if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0] / 4:
            return None
        return Saved(list(tensors.values()), device)

    # --- replays ------------------------------------------------------------------------------------------------------

    def _replay(self, recorded: Recorded) -> Any:
        for rates in recorded.rates:
            rates.refresh()
        result = self._replay_calls(recorded)
        present = recorded.gradients[:1] if recorded.updates else recorded.gradients
        if any(parameter.grad is not gradient for parameter, gradient in present):
            for parameter, gradient in recorded.gradients:
                parameter.grad = gradient
        for parameter, gradient in recorded.others:
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)
        if not recorded.updates:
            self.step.update()
        return result

    def _replay_calls(self, recorded: Recorded) -> Any:
        """Replay the graph. Return a copy of its result that later replays do not overwrite."""
        recorded.graph.replay()
        return map_tensors(own_copy, recorded.graph.result)

    def _audited(self, recorded: Recorded) -> Any:
        """Replay, and compare the result with the forward pass and the loss, run eagerly on the same batch."""
        saved = Saved(list(self.step.model.buffers()), self.step.device)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            expected = self.step.forward(recorded.batch)
            if isinstance(self.step, TrainStep):
                expected = self.step.loss(expected, recorded.batch)
        drew = saved.drew()
        saved.restore()
        result = self._replay(recorded)
        if not drew and not _agree(result, expected, _SAME_ROUGHLY):
            reason = "a replay differed from the step run eagerly"
            text = f"step.cuda_graph: {reason}. It is captured anew. Call step.recapture() when you change a value."
            warnings.warn(text, stacklevel=3)
            self.recapture(reason)
        return result


class GraphedAroundLoss(GraphedStep):
    """A captured training step whose loss is computed eagerly, because the loss uses the host.

    One graph has the forward pass, the other the model's backward pass, which starts from the loss's gradients of the
    outputs, as in ``torch.cuda.make_graphed_callables``. The loss may look at values. The update is eager, too.
    """

    @property
    def _updates_inside(self) -> bool:
        return False

    def _places(self) -> list[Place]:
        return numbers_of_modules(self.step.model)

    def _capture_calls(self, recorded: Recorded, beside: Any) -> None:
        if self.step.call.form is LossForm.MODEL_BATCH or self.step.plan.compiles_loss:
            raise ValueError("the loss calls the model or is compiled with it: it cannot stay outside the graphs")
        recorded.graph.capture(lambda: self.step.forward(recorded.batch), (), beside)
        found = {id(one): one for one in tensors_of(recorded.graph.result) if one.requires_grad}
        recorded.outputs = list(found.values())
        recorded.seeds = [torch.zeros_like(output) for output in recorded.outputs]
        recorded.backward = self._make_graph(self.device)
        recorded.backward.capture(lambda: torch.autograd.backward(recorded.outputs, recorded.seeds), (), recorded.graph)

    def _replay_calls(self, recorded: Recorded) -> Any:
        recorded.graph.replay()
        for parameter in self.step.parameters:
            parameter.grad = None
        # The loss gets copies, because it may keep them, and replays overwrite the graph's outputs.
        result = recorded.graph.result
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in tensors_of(result)}
        output = map_tensors(lambda tensor: copies[id(tensor)], result)
        loss = self.step.loss(output, map_tensors(own_copy, recorded.batch))
        self.step.backward(loss)
        for one, seed in zip(recorded.outputs, recorded.seeds, strict=True):
            gradient = copies[id(one)].grad
            seed.zero_() if gradient is None else seed.copy_(gradient)
        recorded.backward.replay()
        # The loss may also use parameters directly (weight penalties, or parameters of its own).
        for parameter, gradient in recorded.gradients:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
        return loss.detach()


def _agree(one: Any, other: Any, tolerance: float) -> bool:
    """Whether the norms of the floating-point tensors of two results agree, tensor by tensor."""
    pairs = [pair for pair in zip(tensors_of(one), tensors_of(other), strict=False) if pair[0].is_floating_point()]
    norms = [[tensor.detach().float().norm() for tensor in pair] for pair in pairs]
    return all(torch.allclose(a, b, rtol=tolerance, atol=1e-5, equal_nan=True) for a, b in norms)


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, which the caller may change. Parameters are returned themselves."""
    return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()


def captured(step: S, *, required: bool = False) -> S | GraphedStep:
    """Return the step, captured in a CUDA graph if its plan says so. Raises UsageError if this needs a missing GPU."""
    if not step.plan.cuda_graph:
        return step
    if step.device.type != "cuda":
        raise UsageError(f"step.cuda_graph needs a CUDA GPU, but the model is on the {step.device}.", "Leave it out.")
    if step.plan.cuda_graph == AROUND_LOSS and isinstance(step, TrainStep):
        return GraphedAroundLoss(step, required=required)
    return GraphedStep(step, required=required)
