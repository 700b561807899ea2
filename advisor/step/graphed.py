"""A step captured in a CUDA graph and replayed. PyTorch documentation, CUDA semantics, CUDA Graphs."""

import operator
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.step.capturing import (
    CudaGraph,
    HostConstants,
    LeftBehind,
    as_if_captured,
    find_host_constants,
    masks_as_given,
    own_copy,
    places_on_host,
    renew_accumulators,
)
from advisor.step.clocks import CLOCK
from advisor.step.dependence import DRAWS, depends_on_clocks, depends_on_draws, depends_on_values
from advisor.step.host_draws import AllHostDraws
from advisor.step.made_on_host import MadeOnHost, refuses_the_host
from advisor.step.nested import (
    copy_into,
    copy_of_batch,
    host_places,
    map_tensors,
    signature_of,
    tensors_of,
    values_at,
)
from advisor.step.observed_step import OTHER_NUMBERS
from advisor.step.optimizer import TensorRates, mark_stepped, options_of, updates_without_host
from advisor.step.patience import (
    EAGER_STEPS_BEFORE_CAPTURE,
    REPLAYS_WORTH_A_CAPTURE,
    STEPS_THAT_DDP_TIMES,
    Patience,
)
from advisor.step.places import Place, Values, named, value_at
from advisor.step.python_state import PythonState
from advisor.step.spread import unwrapped
from advisor.step.steps import InferStep, TrainStep
from advisor.step.undone import undone
from advisor.step.watching import REPLACED, Watch, foreign_hook, same_numbers
from advisor.step.writes import writes_to

# Changes of the optimizer's options, each soon after the last, before an update is left outside the graph.
MOST_OPTION_CHANGES = 1
WRITES_INTO_BATCH = "the step writes into the batch that it is given"
GRADIENT = operator.attrgetter("grad")


class GraphedStep:
    """A step that is captured in a CUDA graph on its fourth call and replayed from then on.

    The first calls run eagerly on a side stream and are steps like any other. In the last of them, and in all where
    blocks are compiled, the forward pass goes the way that it goes in a capture. Tensors that a step makes on the host
    of Python's numbers are held on the device (``made_on_host.py``).

    Each replay computes with the present learning rates. Before it, what a graph cannot follow is compared with what
    was captured:

    - the batch's structure, shapes, types and Python values;
    - the layers, their modes and hooks; the parameters, and which of them are trained;
    - the values and objects that the model and the loss read (``watching.py`` says which are found);
    - the optimizer's other options and its state.

    Where one changed, the step runs eagerly, and is captured again once it has settled. A batch that differs once, such
    as a short last one, runs eagerly between replays. The update stays outside the graph where the optimizer's step
    needs the host, where gradients are scaled, and where options other than the learning rate change again and again.
    A step goes on eagerly, with a warning that says why, and is looked at less and less often, where something changes
    each time, where it decides by random numbers of the host or a clock, where it writes into its batch, and where it
    came to be one that cannot be captured. Raises what the first capture raises: the host reads a result, or numbers
    for tensors differ from step to step.
    """

    def __init__(self, step: TrainStep | InferStep, graph: Any = None) -> None:
        self.step = step
        step.around_forward = masks_as_given
        self.plan = step.plan
        self.device = step.device
        self.to_device = step.to_device
        if step.plan.accumulate > 1:
            raise ValueError("a captured step makes an update each time: leave out step.accumulate or step.cuda_graph")
        self.graph = graph or CudaGraph(step.device)
        wrapped = unwrapped(step.model) is not step.model
        self.patience = Patience(STEPS_THAT_DDP_TIMES if wrapped else EAGER_STEPS_BEFORE_CAPTURE)
        self._turn = threading.RLock()
        self._last_stream: torch.cuda.Stream | None = None
        self._optimizer = step.optimizer if isinstance(step, TrainStep) else None
        self._watch: Watch | None = None
        self._rates: TensorRates | None = None  # of an update that is captured
        self._decided: dict[Any, bool] = {}  # whether random numbers of the host or a clock decide on the step
        self._overwritten: dict[tuple[int, Any], Place] = {}  # of tensors that the step writes before it reads them
        self._carried: dict[tuple[int, Any], Place] = {}  # of those that it carries from step to step
        self._constants = HostConstants((), step.device)
        self._made = MadeOnHost(step.device)
        self._constants_in: list[Any] = []  # where they were looked for, and the tensors there
        self._options: list[Any] = []
        self._option_changes = 0
        self._last_key: Any = None
        self._captured_key: Any = None
        self._was_captured = False
        self._host_places: tuple[int, ...] = ()
        self._static_batch: Any = None
        self._parameters: list[Any] = []
        self._gradients: list[Any] = []
        self._left: LeftBehind | None = None
        self._others: list[tuple[Any, torch.Tensor]] = []  # parameters of other optimizers, and the graph's gradients

    @property
    def captured(self) -> bool:
        """Whether there is a graph to replay."""
        return self._captured_key is not None

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler of a training step; None without one."""
        return self.step.scaler if isinstance(self.step, TrainStep) else None

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs of a training step, beside the model and the optimizer."""
        return self.step.state_dict() if isinstance(self.step, TrainStep) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of a training step."""
        if isinstance(self.step, TrainStep):
            self.step.load_state_dict(state)

    def __call__(self, batch: Any) -> Any:
        """One step: replayed where the graph fits the batch and all else, otherwise run eagerly or captured.

        Threads take turns, for all of them use the graph's memory.
        """
        with self._turn:
            self._wait_for_last_turn()
            return self._one_step(batch)

    def _wait_for_last_turn(self) -> None:
        """Have the device finish what another thread's stream began in this memory."""
        if self.device.type == "cuda":
            last, self._last_stream = self._last_stream, torch.cuda.current_stream(self.device)
            if last is not None and last != self._last_stream:
                self._last_stream.wait_stream(last)

    def _one_step(self, batch: Any) -> Any:
        signature = signature_of(batch)  # of the batch as it comes: moving it may change its type
        if self.captured:
            changed = self._changed()
            if changed:
                self._drop(changed)
            elif self._captured_key == (signature, values_at(batch, self._host_places)):
                copy_into(self._static_batch, batch)
                return self._replay()
        moved = self.to_device(batch)
        if self.patience.rests and not self.captured:
            result = self.graph.warm_up(lambda: self.step.run(moved))
            self.patience.ran_eagerly()
            return result
        places = host_places(moved, self.device)
        key = (signature, values_at(moved, places))
        self.patience.look(self._changed_since_last(key))
        if self.patience.is_over and not self._cannot_be_captured() and self._capture(moved):
            self._captured_key, self._host_places = key, places
            return self._replay()
        own = set(map(id, tensors_of(batch)))
        return self._run_eagerly(moved, [tensor for tensor in tensors_of(moved) if id(tensor) in own])

    # --- what changed ---------------------------------------------------------------------------------------------

    _captures_loss = True

    @property
    def _update_inside(self) -> bool:
        """Whether the update is captured too."""
        often = self._option_changes > MOST_OPTION_CHANGES
        return self._optimizer is not None and not often and not self.scaler and updates_without_host(self._optimizer)

    def _changed(self) -> str:
        """The changes since the Watch was made, in words; empty when nothing did."""
        if self._watch is None:
            return "this is the first step"
        return self._watch.changed() or self._changed_options()

    def _changed_options(self) -> str:
        """Whether options of a captured update changed that no tensor holds; often, and the update is left outside."""
        if self._watch is None or not self._watch.updates:
            return ""
        options = options_of(self._optimizer)
        if same_numbers(options, self._options):
            return ""
        long_ago = self.patience.replays >= REPLAYS_WORTH_A_CAPTURE
        self._option_changes = 1 if long_ago else self._option_changes + 1
        return "options of the optimizer changed"

    def _changed_since_last(self, key: Any) -> str:
        """Changes since the last eager step, in words. The present state is kept for the next comparison."""
        changed = "" if key == self._last_key else "the structure, shapes or Python values of the batches changed"
        self._last_key = key
        if not self.captured:
            if of_model := self._changed():
                self._look_anew()
            changed = changed or of_model
        return changed

    def _look_anew(self) -> None:
        """Take the present state as the one that later ones are compared with."""
        step, inside, written = self.step, self._update_inside, self._overwritten
        model, loss = unwrapped(step.model), self._watched_loss
        evaluates = isinstance(step, InferStep) and step.evaluates
        self._decided = {}
        self._watch = Watch(
            model, loss, self._optimizer, self._constants, updates=inside, evaluates=evaluates, overwritten=written
        )
        self._options = options_of(self._optimizer) if inside else []

    @property
    def _watched_loss(self) -> Any:
        """The loss that is captured too; None without one."""
        return self.step.loss_function if isinstance(self.step, TrainStep) and self._captures_loss else None

    def _cannot_be_captured(self) -> bool:
        """Whether a captured step would leave something out; it is asked for again later."""
        assert self._watch is not None
        reason = foreign_hook(self._watch.modules) or self._watch.unfollowed
        if reason:
            self.patience.put_off(reason)
        return bool(reason)

    # --- running --------------------------------------------------------------------------------------------------

    def _run_eagerly(self, batch: Any, given: list[torch.Tensor]) -> Any:
        """Run a step; ``given`` are the tensors of the batch that are the caller's own."""
        if self.captured:  # a batch of another form, in between
            with self._constants.on_device():
                result = self.graph.warm_up(lambda: self.step.run(batch))
        else:
            draws = AllHostDraws() if self.patience.is_almost_over else None
            versions = list(map(writes_to, given))
            run = self._rehearse if self._rehearses else self.step.run
            self._look_for_constants(batch)
            with self._constants.on_device():
                result = self.graph.warm_up(lambda: run(batch))
            drew = draws is not None and AllHostDraws() != draws
            self._look_after_a_step(batch, drew=drew, wrote=list(map(writes_to, given)) != versions)
        self.patience.ran_eagerly()
        return result

    @property
    def _rehearses(self) -> bool:
        """Whether the next eager step's forward pass goes the way of a captured one.

        With blocks that are compiled all do, or they would be compiled for both ways. A forward pass that is compiled
        as a whole has one way.
        """
        if self.plan.compiles_with == "none":
            return self.patience.is_almost_over
        return self.plan.compile_scope == "regional"

    def _rehearse(self, batch: Any) -> Any:
        """Run a step whose forward pass goes the way of a captured one."""
        self.step.around_forward = as_if_captured
        try:
            return self.step.run(batch)
        finally:
            self.step.around_forward = masks_as_given

    def _look_after_a_step(self, batch: Any, *, drew: bool, wrote: bool) -> None:
        """Note what an eager step changed: the first makes the optimizer's state.

        A step that changes something each time is never captured, and neither is one that the host's draws decide on,
        or one that writes into tensors of the caller's, such as a cache: a graph has copies of them.
        """
        changed = self._changed()
        if changed == REPLACED and self._overwrites(batch):
            self._look_anew()
            changed = self._changed()
        clocks = self._watch.clocks if self._watch and self.patience.is_almost_over else []
        if changed:
            self._look_anew()
        elif drew and self._is_decided_by(depends_on_draws, batch):
            changed = DRAWS
        elif clocks and self._is_decided_by(depends_on_clocks, batch, clocks):
            changed = CLOCK
        elif wrote:
            changed = WRITES_INTO_BATCH
        if changed:
            self.patience.look(changed)

    def _is_decided_by(self, depends: Callable[..., bool], batch: Any, *places: Any) -> bool:
        """Whether something outside decides what a step computes; tried once, until something changes."""
        if depends not in self._decided:
            model, loss = self.step.model, self._watched_loss
            self._decided[depends] = self.graph.warm_up(
                lambda: depends(model, loss, lambda: self._computed(batch), *places)
            )
        return self._decided[depends]

    def _overwrites(self, batch: Any) -> bool:
        """Whether a step writes the tensors that it replaced before it reads them; tried once for each."""
        assert self._watch is not None
        replaced = {named(place): place for place in self._watch.replaced()}
        if not replaced.keys().isdisjoint(self._carried):
            return False
        model, loss, places = self.step.model, self._watched_loss, list(replaced.values())
        carried = self.graph.warm_up(lambda: depends_on_values(model, loss, lambda: self._computed(batch), places))
        (self._carried if carried else self._overwritten).update(replaced)
        return not carried

    def _look_for_constants(self, batch: Any) -> None:
        """Find the tensors of the host that the step copies to its device, unless they are those of the last step."""
        assert self._watch is not None
        places = places_on_host(self._watch.objects_in.places, self.device)
        found_in = [(named(place), id(value_at(*place))) for place in places]
        if found_in != self._constants_in:
            self._constants_in, model, loss = found_in, self.step.model, self._watched_loss
            self._constants = self.graph.warm_up(
                lambda: find_host_constants(model, loss, lambda: self._computed(batch), places, self.device)
            )

    def _computed(self, batch: Any) -> Any:
        """The loss of a training step, or the output of another one."""
        output = self.step.forward(batch)
        return self.step.loss(output, batch) if isinstance(self.step, TrainStep) else output

    def _drop(self, reason: str) -> None:
        """Forget the graph, which does not fit any more."""
        self.patience.ended(reason)
        self._captured_key = self._static_batch = self._rates = self._left = None
        self._parameters, self._gradients, self._others = [], [], []
        self.graph.drop()
        self._made.forget()
        self._look_anew()

    def _capture(self, batch: Any) -> bool:
        """Capture a step on a batch like this one. Return whether there is a graph now; raise what a capture raises."""
        if self.captured:
            self._drop("the batches have another form")
        self._static_batch = copy_of_batch(batch)
        self._look_anew()
        assert self._watch is not None
        self._left = LeftBehind(self._watch.modules, self._watch.functions, self._watch.spaces)
        self._constants.refresh()
        try:
            with self._constants.on_device():
                if not self._is_captured_at_once():
                    with self._made.serving():
                        self._capture_in_graph()
        except Exception as error:
            if not self._was_captured:
                raise
            self._drop(f"it cannot be captured any more: {' '.join(str(error).split())[:200]}")
            return False
        self._was_captured = True
        self._left.look()
        return True

    def _is_captured_at_once(self) -> bool:
        """Try to capture. Return whether there is a graph; if not, what the step makes on the host is held now."""
        assert self._watch is not None
        before = PythonState(self._watch.modules, with_hooks=True), Values(self._watch.objects_in.places)
        try:
            self._capture_in_graph()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they keep what was computed, in the memory of no graph
            for state in before:
                state.put_back()
            if not refuses_the_host(error) or not self._holds_made_on_host():
                raise
            return False
        return True

    def _capture_in_graph(self) -> None:
        step = self.step
        if isinstance(step, TrainStep):
            self._rates = TensorRates(step.optimizer, self.device) if self._update_inside else None
            if self._rates is not None:
                self._rates.refresh()
            self._record(step)
        else:
            self.graph.capture(lambda: step.forward(self._static_batch))

    def _holds_made_on_host(self) -> bool:
        """Whether tensors that the step makes on the host and sends to its device are held there now.

        The step is looked at in two runs, which are undone. Raises where they make different ones. A step that is
        compiled would be compiled anew to be looked at.
        """
        model, loss, looks = self.step.model, self._watched_loss, []
        if self.plan.compiles_with != "none":
            return False
        self.step.around_forward = as_if_captured
        try:
            with undone(model, loss):
                for _ in range(2):
                    with self._made.looking():
                        self.graph.warm_up(lambda: self._computed(self._static_batch))
                    looks.append(self._made.sent)
        except Exception:  # user code under a mode that few people run
            return False
        finally:
            self.step.around_forward = masks_as_given
        if looks[0] != looks[1]:
            raise RuntimeError(OTHER_NUMBERS)
        return bool(self._made.held)

    def _record(self, step: TrainStep) -> None:
        """Capture a training step. The graph makes gradients in memory of its own, where each replay overwrites them.

        Those that another optimizer uses are added up until its step: they are kept, and added to after each replay.
        """
        assert self._watch is not None
        own = dict.fromkeys(step.parameters)
        others = [parameter for parameter in dict.fromkeys(self._watch.parameters) if parameter not in own]
        added_up = list(map(GRADIENT, others))
        renew_accumulators((*own, *others))
        step.optimizer.zero_grad(set_to_none=True)
        for parameter in others:
            parameter.grad = None
        try:
            self._capture_step(step)
            self._parameters = [parameter for parameter in own if parameter.grad is not None]
            self._gradients = list(map(GRADIENT, self._parameters))
            self._others = [(parameter, parameter.grad) for parameter in others if parameter.grad is not None]
        finally:
            for parameter, gradient in zip(others, added_up, strict=True):
                parameter.grad = gradient

    def _capture_step(self, step: TrainStep) -> None:
        self.graph.capture(lambda: self._step_to_capture(step, self._rates))

    def _step_to_capture(self, step: TrainStep, rates: TensorRates | None) -> torch.Tensor:
        output = step.forward(self._static_batch)
        try:
            loss = step.loss(output, self._static_batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise RuntimeError(f"the loss cannot be captured: {error}") from error
        step.backward(loss)
        if rates is not None:
            with rates.inside():
                step.update()
        return loss.detach()

    def _replay_step(self) -> None:
        self.graph.replay()

    def _replay(self) -> Any:
        if self._rates is not None:
            self._rates.refresh()
        self._constants.refresh()
        self._replay_step()
        self.patience.replayed()
        if isinstance(self.step, TrainStep):
            self._put_gradients_back()
            self._add_up_for_others()
            if self._rates is None:
                self.step.update()
            else:
                mark_stepped(self.step.optimizer)
        # The next replay overwrites the graph's own tensors.
        result = map_tensors(own_copy, self._result)
        if self._left is not None:
            self._left.renew()
        if isinstance(self.step, TrainStep):
            self.step.after(result)
        else:
            self.step.after()
        return result

    @property
    def _result(self) -> Any:
        """The captured step's result: the loss of a training step, the output of another one."""
        return self.graph.result

    def _put_gradients_back(self) -> None:
        """Let the parameters have the graph's gradients, which an eager step or the loop may have replaced or cleared.

        An update outside the graph reads all of them. Else they are for the loop to look at, and the first one tells.
        """
        looked_at = self._parameters if self._rates is None else self._parameters[:1]
        if not all(map(operator.is_, map(GRADIENT, looked_at), self._gradients)):
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient

    def _add_up_for_others(self) -> None:
        """Do with the gradients that another optimizer uses what a backward pass does: add to what is there."""
        present = [(parameter.grad, gradient) for parameter, gradient in self._others if parameter.grad is not None]
        for parameter, gradient in self._others:
            if parameter.grad is None:
                parameter.grad = gradient.clone()
        if present:
            torch._foreach_add_(*map(list, zip(*present, strict=True)))
