"""A step captured in a CUDA graph and replayed. PyTorch documentation, CUDA semantics, CUDA Graphs."""

import functools
import math
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import transformer

from advisor.errors import CaptureError, UsageError
from advisor.recipe.plan import AROUND_LOSS
from advisor.step.batch import copy_into, copy_of_batch, map_tensors, signature_of, tensors_of
from advisor.step.loss import LossCall
from advisor.step.near import Place, modules_near, optimizers_near, places_near
from advisor.step.optimizer import TensorRates, make_capturable, mark_stepped, updates_without_host
from advisor.step.step import OwnStep, Step, TrainStep
from advisor.step.watch import OPTIONS, Numbers, Saved, Watch, numbers_of_modules
from advisor.step.wrappers import unwrapped

# Libraries allocate their workspaces and compilers compile in the first steps; a capture must not see that. A count.
WARM_UP_STEPS = 3
# DistributedDataParallel times its first ten steps, for which the host waits, and orders its buckets in the second.
WARM_UP_STEPS_OF_DDP = 11
MOST_SIGNATURES = 8
AUDIT_EVERY = 1_000  # replays
# A graph that was replayed less often was not worth its capture: the next one waits twice as many eager steps.
_WORTH_A_CAPTURE = 50
_MOST_WARM_UP_STEPS = 1_000
_MANY_WARM_UP_STEPS = 40  # so many before a capture, and the user is told why
# Relative difference of losses and outputs between a replay and an eager step. Kernels that add in an order of their
# own differ by less in bfloat16; a number that a graph froze shows above it.
_SAME_RESULT = 1e-2
_SAME_AUDIT = 5e-2  # beside compiled code, which rounds at other places
# The function that calls a loss with an output, by which a failure there is told from one of the model.
LOSS = LossCall.of_output.__name__
_INSTALLED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class CudaGraph:
    """A call captured in a CUDA graph; ``result`` is what it returned, overwritten by each replay."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph = torch.cuda.CUDAGraph()
        self.result: Any = None

    def warm_up(self, call: Callable[[], Any]) -> Any:
        """Run a call eagerly, on the stream that captures: autograd's nodes belong to the stream that made them."""
        stream, current = capture_stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = call()
        current.wait_stream(stream)
        return result

    def capture(
        self, call: Callable[[], Any], generators: Iterable[torch.Generator] = (), beside: "CudaGraph | None" = None
    ) -> None:
        """Capture a call, without running its kernels; ``generators`` are those of the device that it draws from.

        ``beside`` is another graph whose memory is used as well: nothing that a replay leaves there is needed after the
        next replay of either began.
        """
        pool = None if beside is None else beside.graph.pool()
        for generator in generators:
            self.graph.register_generator_state(generator)
        failures: list[Exception] = []
        draws = torch.cuda.get_rng_state(self.device)
        try:
            # A loader's thread that pins memory calls CUDA meanwhile, which any other error mode takes for a fault.
            with self._capturing(self.graph, pool):
                try:
                    self.result = call()
                except Exception as failure:
                    failures.append(failure)
                    raise
        except Exception as error:
            # PyTorch 2.11 leaves generators in the state of capturing after a failure; a capture that works ends it.
            with suppress(RuntimeError), self._capturing(torch.cuda.CUDAGraph()):
                torch.zeros(1, device=self.device)
            torch.cuda.set_rng_state(draws, self.device)
            raise (failures or [error])[0] from None  # ending a capture that has failed raises again, and says less

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
        stream = capture_stream(self.device)
        current = torch.cuda.current_stream(self.device)  # left behind where a capture cannot be ended
        captures = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.stream(current), captures:
            yield

    def replay(self) -> None:
        """Run the captured kernels."""
        self.graph.replay()


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures on a device. One for all graphs: libraries keep memory to work in for each stream."""
    return torch.cuda.Stream(device)


@dataclass(slots=True)
class Recorded:
    """A captured step: its graph, the batch that it reads, and what a replay leaves to be done.

    ``gradients`` are those that the graph writes; ``others`` the same of parameters of other optimizers, which add them
    up; ``kept`` those that were there before and that it adds to. ``updates``: the graph makes the update too, with the
    learning rates in ``rates``.
    """

    graph: Any
    batch: Any
    updates: bool
    rates: list[TensorRates]
    gradients: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    others: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    # Of a step whose loss stays outside: the second graph, where it begins, and the loss's gradients there.
    backward: Any = None
    outputs: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor] = field(default_factory=list)


class GraphedStep:
    """A step that runs eagerly three times, and is then captured in a CUDA graph and replayed.

    There is a graph for each signature of the batch, eight at most; batches of others run eagerly. The first replay is
    compared with an eager step from the same state. Learning rates are followed. Before each replay the step looks at
    what is cheap to look at, and is captured anew where it changed: training modes, parameters and which of them
    require gradients, the number of hooks, the optimizer's numbers, and plain numbers, texts and flags near the step
    (:mod:`advisor.step.near`). After every 1,000 replays, but for a step of the user's own, the forward pass and the
    loss run once eagerly on the same batch; where nothing is drawn at random and the results differ, the step warns and
    is captured anew. For a change of anything else call :meth:`recapture`.

    A replay runs no Python: what the step keeps in attributes is the graph's memory, which the next replay overwrites.
    The update stays outside the graph with a gradient scaler, with an optimizer that counts its steps on the host, and
    once options other than the learning rate have changed. ``refuse`` is called with the reason and the error where
    the step cannot be captured; it runs eagerly from then on.
    """

    def __init__(
        self,
        step: Any,
        graph: Callable[[torch.device], Any] = CudaGraph,
        refuse: Callable[[str, Exception | None], None] | None = None,
    ) -> None:
        if step.plan.accumulate > 1:
            raise ValueError("a captured step makes an update each time: leave out step.accumulate or step.cuda_graph")
        step.around_forward = as_if_captured
        self.step = step
        self.plan, self.device, self.to_device = step.plan, step.device, step.to_device
        self.refusal = ""
        self.reason = ""  # why the last graph was forgotten
        self.replays = 0
        self._make_graph, self._eager = graph, graph(step.device)
        self._refuse = refuse or _warn
        self._own = isinstance(step, OwnStep)
        self._call = step.function if self._own else step.call.loss_function if isinstance(step, TrainStep) else None
        self._optimizers: list[Any] = [step.optimizer] if isinstance(step, TrainStep) else []
        if self._own:
            found = {id(one): one for one in (*step.optimizers, *optimizers_near(self._call))}
            self._optimizers = list(found.values())
            for optimizer in self._optimizers:
                make_capturable(optimizer, self.device)
        forget = weakref.WeakMethod(self.recapture)
        for optimizer in self._optimizers:  # the state that is loaded lies in other memory
            optimizer.register_load_state_dict_post_hook(
                lambda _: step_forgets() if (step_forgets := forget()) else None
            )
        wrapped = unwrapped(step.model) is not step.model
        self._needed = self._usual = WARM_UP_STEPS_OF_DDP if wrapped else WARM_UP_STEPS
        self._seen: dict[Any, int] = {}  # eager steps by the signature of their batch
        self._recorded: dict[Any, Recorded] = {}
        self._watch: Watch | None = None
        self._options_change = False
        self._warned = False

    @property
    def captured(self) -> bool:
        """Whether there is a graph to replay."""
        return bool(self._recorded)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler of a training step; None without one."""
        return getattr(self.step, "scaler", None)

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs of a training step, beside the model and the optimizer."""
        return self.step.state_dict() if isinstance(self.step, TrainStep) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of a training step."""
        if isinstance(self.step, TrainStep):
            self.step.load_state_dict(state)

    def recapture(self) -> None:
        """Forget all graphs: the step runs eagerly three times and is captured anew."""
        self._forget("")

    def _forget(self, reason: str) -> None:
        """Forget all graphs. After one that was hardly used the next one waits longer."""
        short = self.captured and self.replays < _WORTH_A_CAPTURE
        self._needed = min(2 * self._needed, _MOST_WARM_UP_STEPS) if short and reason else self._usual
        self.reason = reason
        self.replays = 0
        self._watch = None
        self._seen.clear()
        self._recorded.clear()
        if self._needed > _MANY_WARM_UP_STEPS:
            self._warn_once(f"the step is captured again and again: {reason}. Keep such a value in a tensor.")

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"step.cuda_graph: {text}", stacklevel=4)

    def __call__(self, batch: Any) -> Any:
        """One step: replayed where there is a graph for the batch, otherwise run eagerly or captured."""
        key = (signature_of(batch), torch.is_grad_enabled())
        if self._watch is not None and (changed := self._watch.changed()):
            self._options_change = self._options_change or changed == OPTIONS
            self._forget(changed)
        recorded = self._recorded.get(key)
        if recorded is None:
            return self._run_or_capture(key, self.to_device(batch))
        copy_into(recorded.batch, batch)
        self.replays += 1
        if self.replays % AUDIT_EVERY == 0 and not self._own:
            return self._audited(recorded)
        return self._replay(recorded)

    # --- eager steps and captures -------------------------------------------------------------------------------------

    def _run_or_capture(self, key: Any, batch: Any) -> Any:
        """Run a step; capture it once enough steps with such a batch have run."""
        if self.refusal or (key not in self._seen and len(self._seen) == MOST_SIGNATURES):
            if not self.refusal:
                self._warn_once(
                    f"batches have more than {MOST_SIGNATURES} shapes; other shapes run without a graph. Pad batches "
                    "to few lengths."
                )
            return self._run(batch)
        self._seen[key] = seen = self._seen.get(key, 0) + 1
        # A shape that comes later needs one step for what is chosen or compiled by shape.
        needed = 1 if self._recorded else self._needed
        return self._run(batch) if seen <= needed else self._capture(key, batch)

    def _run(self, batch: Any) -> Any:
        return self._eager.warm_up(lambda: self.step.run(batch))

    def _capture(self, key: Any, batch: Any) -> Any:
        """Run one step eagerly, capture it, and compare a replay from the same state; the result of one of the two."""
        saved, numbers = Saved.of(self._state(), self.device), Numbers(self._places())
        expected = self._run(batch)
        if saved is not None:
            saved.note()
        try:
            recorded = self._record(copy_of_batch(batch))
        except Exception as error:  # whatever the user's code or CUDA raises
            numbers.put_back()
            self._give_up(_reason_of(error), error)
            return expected
        if changed := numbers.changed():
            numbers.put_back()
            self._give_up(f"{changed} changes in each step, and a replay runs no Python")
            return expected
        self._recorded[key] = recorded
        optimizers = self._optimizers if recorded.updates else []
        self._watch = Watch(self.step.model, self._places(), optimizers, recorded.kept)
        if saved is None:  # too large to be copied: the eager step stands
            return expected
        saved.restore()
        result = self._replay(recorded)
        if saved.drew or (_agree(result, expected, _SAME_RESULT) and saved.moved_alike()):
            return result
        saved.restore()
        self._give_up("a replay computes something else than the step: it reads values that a graph cannot follow")
        return self._run(batch)

    def _give_up(self, reason: str, error: Exception | None = None) -> None:
        """Run the step eagerly from now on."""
        self._forget(reason)
        self.refusal = reason
        self._refuse(reason, error)

    def _record(self, batch: Any) -> Recorded:
        """Capture a step on this batch. Its gradients lie in memory of the graph, which each replay overwrites."""
        step, updates = self.step, self._updates_inside
        rates = [TensorRates(one, self.device) for one in self._optimizers if updates and updates_without_host(one)]
        recorded = Recorded(self._make_graph(self.device), batch, updates, rates)
        own = {parameter for one in self._optimizers for group in one.param_groups for parameter in group["params"]}
        before = [(one, one.grad) for one in dict.fromkeys((*own, *step.model.parameters()))]
        for parameter, _ in () if self._own else before:
            parameter.grad = None
        try:
            with ExitStack() as stack:
                for each in rates:
                    stack.enter_context(each.inside())
                self._capture_calls(recorded, next((one.graph for one in self._recorded.values()), None))
        except Exception:
            for parameter, gradient in before:
                parameter.grad = gradient
            raise
        for parameter, gradient in before:
            if (made := parameter.grad) is None or made is gradient:
                recorded.kept += [] if made is None else [(parameter, made)]
            elif self._own or parameter in own:
                recorded.gradients.append((parameter, made))
            else:
                recorded.others.append((parameter, made))
                parameter.grad = gradient
        return recorded

    def _capture_calls(self, recorded: Recorded, beside: Any) -> None:
        """Capture what a replay runs, in the memory of the graph ``beside`` where there is one."""
        near = [place.value() for place in self._places()]
        generators = [one for one in near if isinstance(one, torch.Generator) and one.device.type == self.device.type]
        recorded.graph.capture(lambda: self.step.body(recorded.batch, update=recorded.updates), generators, beside)

    @property
    def _updates_inside(self) -> bool:
        """Whether the graph makes the update too."""
        if self._own or not isinstance(self.step, TrainStep):
            return True
        return self.scaler is None and not self._options_change and all(map(updates_without_host, self._optimizers))

    def _places(self) -> list[Place]:
        """The places near the step: of its loss or function, and the attributes of the model's modules."""
        return [*places_near(self._call), *numbers_of_modules(self.step.model)]

    def _state(self) -> list[torch.Tensor]:
        """The tensors that a step changes: parameters, buffers, and the optimizers' state."""
        modules = [self.step.model, *modules_near(self._call)]
        state = [value for one in self._optimizers for each in one.state.values() for value in each.values()]
        found = [*(one for module in modules for one in (*module.parameters(), *module.buffers())), *state]
        return list({id(one): one for one in found if isinstance(one, torch.Tensor)}.values())

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
        if recorded.updates:
            for optimizer in self._optimizers:
                mark_stepped(optimizer)
        else:
            self.step.update()
        return self.step.finish(result)

    def _replay_calls(self, recorded: Recorded) -> Any:
        """Run what was captured; the result, in memory that no later replay overwrites."""
        recorded.graph.replay()
        return map_tensors(own_copy, recorded.graph.result)

    def _audited(self, recorded: Recorded) -> Any:
        """Replay, and compare the result with that of the forward pass and the loss run once eagerly."""
        saved = Saved(list(self.step.model.buffers()), self.device)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            expected = self.step.forward(recorded.batch)
            if isinstance(self.step, TrainStep):
                expected = self.step.loss(expected, recorded.batch)
        saved.note()
        saved.restore()
        result = self._replay(recorded)
        if not saved.drew and not _agree(result, expected, _SAME_AUDIT):
            warnings.warn(
                "step.cuda_graph: a replay differed from the step run eagerly, so something that the step reads has "
                "changed. It is captured anew; call step.recapture() when you change such a value.",
                stacklevel=3,
            )
            self._forget("a replay differed from the step run eagerly")
        return result


def _agree(one: Any, other: Any, tolerance: float) -> bool:
    """Whether the floating-point tensors of two results are of the same size, tensor by tensor."""
    sizes = [
        [float(tensor.detach().float().norm()) for tensor in tensors_of(result) if tensor.is_floating_point()]
        for result in (one, other)
    ]
    pairs = zip(*sizes, strict=False)
    return all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-5) or (math.isnan(a) and math.isnan(b)) for a, b in pairs
    )


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that belongs to the caller; a parameter is its own."""
    return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()


def _reason_of(error: Exception) -> str:
    """PyTorch's message of a capture that failed, and the user's line that it came from."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU ran out of memory while the step was captured"
    lines = traceback.extract_tb(error.__traceback__)
    users = [
        line for line in lines if not line.filename.startswith(_INSTALLED) and "site-packages" not in line.filename
    ]
    loss = "the loss cannot be captured: " if any(line.name == LOSS for line in lines) else ""
    place = f" ({Path(users[-1].filename).name}, line {users[-1].lineno}: {users[-1].line})" if users else ""
    return f"{loss}{str(error).strip().partition(chr(10))[0][:200]}{place}"


def _warn(reason: str, _: Exception | None) -> None:
    """Warn that the step goes on uncaptured."""
    warnings.warn(f"step.cuda_graph is left out, the step runs as it is: {reason}.", stacklevel=5)


def refuse_graph(reason: str, error: Exception | None) -> None:
    """Raise CaptureError for a step that cannot be captured; where memory ran out, that error."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    raise CaptureError(f"the step cannot be captured in a CUDA graph: {reason}.") from error


def captured(step: Step, refuse: Callable[[str, Exception | None], None] | None = None) -> Any:
    """The step as its plan says: captured in a CUDA graph, or as it is. Raises UsageError without a GPU."""
    if not step.plan.cuda_graph:
        return step
    if step.device.type != "cuda":
        raise UsageError(f"step.cuda_graph needs a CUDA GPU, and the model is on the {step.device}.", "Leave it out.")
    if step.plan.cuda_graph == AROUND_LOSS and isinstance(step, TrainStep):
        from advisor.step.graph_around_loss import GraphedAroundLoss

        return GraphedAroundLoss(step, refuse=refuse)
    return GraphedStep(step, refuse=refuse)


def refuse_if_never_captured(step: Any) -> None:
    """Raise CaptureError, with what was in the way, for a step that should have been captured by now."""
    if isinstance(step, GraphedStep) and not step.captured:
        refuse_graph(step.refusal or step.reason or "the shapes of its batches differ from step to step", None)


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Have code that asks whether a graph is being captured hear that one is, in eager steps too.

    Some goes another way then (Hugging Face's attention masks are made without a look at their values), and what a
    compiler has to make for that way it cannot make in a capture. PyTorch's transformers (2.6 to 2.14) ask whether a
    mask is the causal one, for which the host waits; the answer only chooses among kernels.
    """
    asked, detected = torch.cuda.is_current_stream_capturing, transformer._detect_is_causal_mask
    torch.cuda.is_current_stream_capturing = _yes
    transformer._detect_is_causal_mask = _is_called_causal  # the same function each time, or compilers compile anew
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing, transformer._detect_is_causal_mask = asked, detected


def _yes() -> bool:
    return True


def _is_called_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
