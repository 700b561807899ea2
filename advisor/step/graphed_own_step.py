"""A step that the user wrote, captured whole in a CUDA graph. PyTorch documentation, CUDA semantics, CUDA Graphs."""

import contextlib
import typing
import warnings

import torch

from advisor.step.capturing import HostConstants, as_if_captured, masks_as_given, own_copy, renew_accumulators
from advisor.step.clocks import CLOCK, Clocks
from advisor.step.dependence import DRAWS
from advisor.step.graphed import WRITES_INTO_BATCH, GraphedStep
from advisor.step.host_draws import AllHostDraws
from advisor.step.nested import copy_of_batch, tensors_of
from advisor.step.observed_step import ObservedStep
from advisor.step.optimizer import TensorRates, mark_stepped, on_device, updates_without_host
from advisor.step.own_results import DIFFERENTIATED, ResultParts, awaits_backward
from advisor.step.places import Place, put_at, value_at
from advisor.step.reachable_state import ReachableState
from advisor.step.steps import OwnStep
from advisor.step.watching import REQUIRES_GRAD, count_hooks, flag_readers, foreign_hook, has_address
from advisor.step.writes import address_of, sum_on_host, writes_to

# Steps in a row that each change something, or differ from the one before, until the step is refused. A count.
MOST_DIFFERING_STEPS = 4
# Steps that are watched before a capture: both must do the same. A count.
OBSERVED_STEPS = 2
OTHER_RESULTS = (
    "the step returns values of another kind or form each time, or a learning rate, which a captured step has in a "
    "tensor: read it in the loop"
)


def warn_of_refusal(reason: str) -> None:
    """Warn that the step goes on uncaptured."""
    warnings.warn(f"step.cuda_graph is left out, the step runs as it is: {reason}.", stacklevel=7)


class GraphedOwnStep(GraphedStep):
    """A step of the user's own that is captured in a CUDA graph on its fourth call and replayed from then on.

    The first calls are ordinary steps. Two of them are watched: they must run the same operators with the same numbers
    on the same tensors, ask nothing of the host, and leave all Python state that the step reaches as they found it.
    They may write to tensors, and replace tensors that they have not read. Any other step is refused: ``refusal`` says
    why in a sentence, ``refuse`` is called with it, and the step runs as the user wrote it from then on.

    Before each replay the state that the step reaches is compared with that of the capture (``reachable_state.py``).
    Where it changed, the step runs eagerly and is captured again once it has settled. Learning rates of optimizers that
    need no host are copied in. A batch that differs once, such as a short last one, runs eagerly between replays. A
    capture that fails leaves parameters, states, variables and random numbers as they were. A replay returns what the
    step returns, with tensors of the caller's own (``own_results.py``).
    """

    def __init__(
        self, step: OwnStep, graph: typing.Any = None, refuse: typing.Callable[[str], None] = warn_of_refusal
    ) -> None:
        super().__init__(step, graph)
        self.own = step
        self.refuse = refuse
        self.refusal = ""
        self._state: StepState | None = None
        self._observed: list[ObservedStep] = []
        self._differing = 0  # steps in a row that changed something or did something else than the one before
        self._replaced: dict[str, Place] = {}  # tensors that each step replaces and does not read before
        self._all_rates: list[TensorRates] = []
        self._live: list[torch.Tensor] = []  # from which the caller of the last eager step could go backwards
        self._plain_form: typing.Any = None  # of the result of the last step that was not watched
        self._parts: ResultParts | None = None  # of the captured step's result
        self._new_gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # those that the graph makes
        self._new_tensors: list[tuple[Place, torch.Tensor]] = []  # those that it makes for the places in _replaced

    def _one_step(self, batch: typing.Any) -> typing.Any:
        if not all(map(awaits_backward, self._live)):
            self._refuse(DIFFERENTIATED)
        return self.own.run(self.to_device(batch)) if self.refusal else super()._one_step(batch)

    # --- what changed ---------------------------------------------------------------------------------------------

    def _changed(self) -> str:
        return "this is the first step" if self._state is None else self._state.changed()

    def _look_anew(self) -> None:
        self._state = StepState(self.own, self._replaced)
        self._observed = []

    def _cannot_be_captured(self) -> bool:
        """Whether this is no time to capture: then why is kept, and it is asked again later."""
        assert self._state is not None, "looked at before each step"
        if self.captured:
            self._drop("the batches have another form")
            return True
        if hook := foreign_hook(self._state.reached.modules):
            self._refuse(hook)
            return True
        if any(observed.reads_clock for observed in self._observed):
            self._refuse(CLOCK)
            return True
        if len(self._observed) < OBSERVED_STEPS:
            reason = "too few of the last steps were alike"
        elif torch.is_autocast_enabled(self.device.type) and torch.is_autocast_cache_enabled():
            reason = "the step runs inside autocast, which keeps casts of weights that a graph would go on to use"
        else:
            return False
        self.patience.put_off(reason)
        return True

    def _refuse(self, reason: str) -> None:
        """Give up: run the step as it is from now on."""
        self.refusal = reason
        self._state, self._observed, self._all_rates, self._live = None, [], [], []
        self.refuse(reason)

    # --- running --------------------------------------------------------------------------------------------------

    def _run_eagerly(self, batch: typing.Any, given: list[torch.Tensor]) -> typing.Any:
        if self.refusal:
            return self.own.run(batch)
        if self.captured:  # a batch of another form, in between
            result = self.graph.warm_up(lambda: self.own.run(batch))
            self.patience.ran_eagerly()
            return result
        state = self._state
        assert state is not None, "looked at before each step"
        if reason := state.problem:
            self._refuse(reason)
            return self.own.run(batch)
        watches = self.patience.steady >= self.patience.needed - OBSERVED_STEPS
        observed = ObservedStep(self.device, batch, state.leaves, self._made.sends) if watches else None
        versions, draws = list(map(writes_to, given)), state.draws() if watches else []
        result = self.graph.warm_up(lambda: self._watched_run(batch, observed))
        if observed is not None:
            observed.sent = self._made.sent
        if observed is not None and observed.problem:
            self._refuse(observed.problem)
        elif observed is not None and self._made.knows_others and observed.sends:
            self._refuse(observed.sends)
        elif watches and state.draws() != draws:
            self._refuse(DRAWS)
        elif list(map(writes_to, given)) != versions:
            self._refuse(WRITES_INTO_BATCH)
        else:
            self._look_after(state, observed, result)
        if not self.refusal:
            self.patience.ran_eagerly()
        return result

    def _watched_run(self, batch: typing.Any, observed: ObservedStep | None) -> typing.Any:
        """Run a step; one that is observed goes the way of a captured one."""
        if observed is None:
            return self.own.run(batch)
        state = self._state
        assert state is not None, "looked at before each step"
        self.own.around_forward = as_if_captured
        try:
            eager, clocks = torch.compiler.set_stance("force_eager"), Clocks(state.reached.clocks)
            with eager, self._rates_in_tensors(), self._made.looking(), observed, clocks:
                result = self.own.run(batch)
            observed.reads_clock = bool(clocks.asked)
            return result
        finally:
            self.own.around_forward = masks_as_given

    @contextlib.contextmanager
    def _rates_in_tensors(self) -> typing.Iterator[None]:
        """Have the optimizers whose step needs no host read their learning rates in tensors."""
        assert self._state is not None
        optimizers = [one for one in self._state.reached.optimizers if updates_without_host(one)]
        if [rates.optimizer for rates in self._all_rates] != optimizers:
            self._all_rates = [TensorRates(optimizer, self.device) for optimizer in optimizers]
        with contextlib.ExitStack() as stack:
            for rates in self._all_rates:
                stack.enter_context(rates.inside())
            yield

    def _look_after(self, before: "StepState", observed: ObservedStep | None, result: typing.Any) -> None:
        """Look at what an eager step did, and compare it with the one before."""
        parts = ResultParts(before.reached.seen)
        form, self._live = parts.form(result), parts.awaiting_backward(result)
        if observed is None:
            self._plain_form = form
        if changed := self._changes(before, observed):
            self._look_anew()
            self._put_off(f"the step changes {changed} each time, and a replay runs no Python")
        elif observed is not None:
            self._compare(observed, result, same_form=form == self._plain_form)

    def _put_off(self, reason: str) -> None:
        """Begin to watch anew after a step that differs from the one before; refuse after some of them in a row."""
        self._differing += 1
        self._observed = []
        self.patience.look(reason)
        if self._differing >= MOST_DIFFERING_STEPS:
            self._refuse(reason)

    def _changes(self, before: "StepState", observed: ObservedStep | None) -> str:
        """Name the changes that a step made; empty for none. A tensor replaced before it was read does not count."""
        changed = before.changed_by_step()
        if changed and observed is not None and (unread := before.unread_among(changed, observed)):
            self._replaced |= unread
            self._look_anew()
            return ""
        return " and ".join(changed[:2])

    def _compare(self, observed: ObservedStep, result: typing.Any, *, same_form: bool) -> None:
        """Compare a step that was watched with the last one that was, and its result with that of a plain step."""
        assert self._state is not None, "looked at before each step"
        if problem := self._state.cannot_follow(observed, self._all_rates):
            self._refuse(problem)
        elif any(tensor.device.type != self.device.type for tensor in tensors_of(result)):
            self._refuse("the step returns a number that is on the host, not on the GPU")
        elif self._observed and (differs := observed.differs_from(self._observed[-1])):
            self._put_off(differs)
        elif not same_form:
            self._put_off(OTHER_RESULTS)
        else:
            self._differing = 0
        if not self.refusal:
            self._observed = [*self._observed, observed][-OBSERVED_STEPS:]

    # --- capturing ------------------------------------------------------------------------------------------------

    def _capture(self, batch: typing.Any) -> bool:
        state, observed = self._state, self._observed[-1]
        assert state is not None, "looked at before each step"
        self._static_batch = copy_of_batch(batch)
        gradients = [(leaf, leaf.grad) for leaf in state.leaves]
        renew_accumulators(state.leaves)
        try:
            with self._rates_in_tensors(), self._made.serving():
                self.graph.capture(lambda: self.own.forward(self._static_batch), state.reached.device_generators)
            kept = [(leaf, gradient) for leaf, gradient in gradients if leaf.grad is gradient]
            parts = ResultParts(state.reached.seen, [gradient for _, gradient in kept if gradient is not None])
            changed = state.changed_by_step()
            problem = f"the step changed {changed[0]} while it was captured" if changed else ""
            problem = problem or ("" if parts.form(self.graph.result) == self._plain_form else OTHER_RESULTS)
        except Exception as error:
            problem = f"it cannot be captured: {' '.join(str(error).split())[:200]}"
        if problem:
            state.put_back(gradients)
            self._static_batch = None
            self.graph.drop()
            self._refuse(problem)
            return False
        self._new_gradients = [(leaf, leaf.grad) for leaf, gradient in gradients if leaf.grad is not gradient]
        self._new_tensors = [(place, value_at(*place)) for place in self._replaced.values()]
        parts.live.update(map(id, parts.awaiting_backward(self.graph.result)))
        self._parts, self._live = parts, []
        self._look_anew()
        assert self._state is not None, "looked at just now"
        self._state.remember_host([number for number, _ in observed.numbers])
        self._state.fixed = [(leaf, grad) for leaf, grad in kept if grad is None or observed.has_read_gradient(leaf)]
        return True

    def _drop(self, reason: str) -> None:
        self._new_gradients, self._new_tensors, self._parts = [], [], None
        super()._drop(reason)

    def _replay(self) -> typing.Any:
        for rates in self._all_rates:
            rates.refresh()
        self.graph.replay()
        self.patience.replayed()
        for leaf, gradient in self._new_gradients:
            if leaf.grad is not gradient:
                leaf.grad = gradient
        if self._new_tensors:
            assert self._state is not None
            for place, tensor in self._new_tensors:
                put_at(*place, own_copy(tensor))
            self._state.reached.remember()
        for rates in self._all_rates:
            mark_stepped(rates.optimizer)
        assert self._parts is not None, "kept by the capture"
        result = self._parts.for_caller(self.graph.result)
        self.own.after()
        return result


class StepState:
    """A snapshot of the objects that a step reaches, of which a graph needs some to stay the same.

    ``replaced`` are the names of tensors that each step replaces without having read them: these may be others.
    ``leaves`` are the tensors with gradients. Of a captured step, ``fixed`` has those gradients that must be the same,
    and ``numbers`` the tensors on the host whose values it may use.
    """

    def __init__(self, step: OwnStep, replaced: typing.Container[str]) -> None:
        self.step = step
        self.replaced = replaced
        self.fixed: list[tuple[torch.Tensor, torch.Tensor | None]] | None = None
        self.numbers: list[tuple[torch.Tensor, int]] = []
        self.flags = flag_readers()
        self.flag_values = self._read_flags()
        self.reached = ReachableState(step.function, step.model)
        self.tensors = self.reached.tensors
        self.leaves = [one for one in self.tensors if one.is_leaf and (one.requires_grad or one.grad is not None)]
        self.placed = [tensor for tensor in self.tensors if has_address(tensor)]
        self.addresses = list(map(torch.Tensor.data_ptr, self.placed))
        self.trained = list(map(REQUIRES_GRAD, self.tensors))
        self.hooks = count_hooks(self.leaves)
        self.without_gradient = [leaf.grad is None for leaf in self.leaves]

    @property
    def problem(self) -> str:
        """A sentence on what no step that reaches this can be captured with; empty where there is nothing."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return "the step runs on several GPUs"
        for optimizer in self.reached.optimizers:
            counts = "capturable" in optimizer.defaults and not all(map(on_device, optimizer.param_groups))
            if counts and self.step.device.type == "cuda":
                return f"{type(optimizer).__name__} counts its steps on the host: pass the optimizer to prepare()"
        return self.reached.problem

    def changed(self) -> str:
        """The changes since the snapshot, in words; empty for none."""
        if names := self._names_changed():
            return f"{names[0]} changed"
        return self._changed_beside()

    def changed_by_step(self) -> list[str]:
        """The changes that the step since has left behind, in words."""
        return self._names_changed() or list(filter(None, [self._changed_beside()]))

    def draws(self) -> list[typing.Any]:
        """The states of the random generators on the host: the global ones, and those of the step's own."""
        return [AllHostDraws(), *self.reached.draws()]

    def remember_host(self, numbers: list[torch.Tensor]) -> None:
        """Take what the step's tensors on the host hold for what a graph repeats, and what these numbers are."""
        there = HostConstants((), self.step.device).not_held(self.placed)
        self.numbers = [(tensor, sum_on_host(tensor)) for tensor in (*numbers, *there)]

    def _names_changed(self) -> list[str]:
        """The names of what was changed. Where equal objects took the place of others, these are taken for the same."""
        if self.reached.is_same_now():
            return []
        now = ReachableState(self.step.function, self.step.model)
        names = [name for name in now.changed_since(self.reached) if name not in self.replaced]
        if not names:
            self.reached = now
        return names

    def _changed_beside(self) -> str:
        if list(map(REQUIRES_GRAD, self.tensors)) != self.trained:
            return "which tensors need gradients"
        if count_hooks(self.leaves) != self.hooks:
            return "the hooks of tensors"
        if list(map(torch.Tensor.data_ptr, self.placed)) != self.addresses:
            return "the memory of a tensor"
        if self._read_flags() != self.flag_values:
            return "a global flag of PyTorch"
        if any(sum_on_host(tensor) != contents for tensor, contents in self.numbers):
            return "a tensor on the host"
        if self.fixed is not None:
            same = all(leaf.grad is gradient for leaf, gradient in self.fixed)
        else:
            same = [leaf.grad is None for leaf in self.leaves] == self.without_gradient
        return "" if same else "which tensors have gradients"

    def _read_flags(self) -> list[typing.Any]:
        return [flag() for flag in self.flags]

    def unread_among(self, names: list[str], observed: ObservedStep) -> dict[str, Place]:
        """The places of these names, where all are tensors that a step replaced without having read them; else none."""
        before, now = self.reached, ReachableState(self.step.function, self.step.model)
        found = {}
        for name in names:
            old, new = before.tensor_at(name), now.tensor_at(name)
            if old is None or new is None or old[1][0] is not new[1][0] or observed.has_read(old[0]):
                return {}
            found[name] = new[1]
        return found

    def cannot_follow(self, observed: ObservedStep, rates: list[TensorRates]) -> str:
        """A sentence on tensors that a step read and whose replacement would not be noticed; empty for none."""
        if any(map(observed.carries_gradient, self.leaves)):
            return "the step adds to gradients of the step before in new memory"
        known = {address_of(tensor) for tensor in (*self.reached.tensors, *(one for r in rates for one in r.tensors))}
        known |= {address for leaf in self.leaves if (address := observed.address_of_gradient(leaf)) is not None}
        for address, tensor in observed.read.items():
            if address not in known:
                shape = "x".join(map(str, tensor.shape)) or "one number"
                what = "made from Python or NumPy values in the step, or held where only a package sees it"
                return f"the step reads a tensor ({shape}) that is not found in its variables: {what}"
        return ""

    def put_back(self, gradients: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Give everything back what it held, after a capture that failed."""
        self.reached.put_back()
        for tensor, trained in zip(self.tensors, self.trained, strict=True):
            if tensor.requires_grad != trained:
                tensor.requires_grad_(trained)
        for leaf, gradient in gradients:
            leaf.grad = gradient
