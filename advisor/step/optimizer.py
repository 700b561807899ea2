"""Optimizers: their options changed in place, their learning rates in tensors, and other classes in their place.

Optimizers stay the objects that they are, so that schedulers, hooks and references to them go on working.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from advisor.errors import RefusedError
from advisor.recipe import Components

# State that is on the device where a step is fused or capturable, and else on the host.
COUNTERS = frozenset({"step", "mu_product"})
# Set by constructors: a gradient scaler leaves unscaling to fused steps. torch 2.0 to 2.14.
UNSCALES = "_step_supports_amp_scaling"
# The attribute of an optimizer that holds its plain options; it ends as those with the hooks of PyTorch do.
PLAIN_OPTIONS = "_plain_options_hooks"


def torch_class(optimizer: Optimizer) -> type[Optimizer] | None:
    """Return the class of torch.optim whose step an optimizer runs; None if it defines its own step."""
    owner = next(cls for cls in type(optimizer).__mro__ if "step" in vars(cls))
    from_torch = getattr(optimizer.step, "__module__", "").startswith("torch.optim.")
    return owner if from_torch and owner is not Optimizer else None


def needs_closure(optimizer: Any) -> bool:
    """Whether the optimizer's step must be given a function that computes the loss."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def why_not(optimizer: Optimizer, changes: Mapping[str, Any], sparse: Collection[Tensor] = ()) -> str:
    """Return the reason why an optimizer cannot have these options; empty if it can.

    The constructor of its class decides which options exist and which exclude each other. For fused steps, one step on
    a parameter with one number shows whether the device supports it.
    """
    name, base = type(optimizer).__name__, torch_class(optimizer)
    if base is None:
        return f"{name} has a step of its own, which may not know the options of PyTorch's optimizers"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters if changes.get("fused") else ():
        if parameter in sparse or not parameter.is_floating_point():
            return "fused steps take floating-point parameters only, and no sparse gradients"
    if changes.get("fused") and any(group.get("dampening") and group["momentum"] for group in optimizer.param_groups):
        return "fused steps with dampening fail where a parameter joins later"
    known = inspect.signature(base).parameters.keys() & optimizer.defaults.keys()
    options = {**{option: optimizer.defaults[option] for option in known}, **changes}
    try:
        number = torch.zeros(1, device=parameters[0].device)
        made: Any = base([number], **options)
        if changes.get("fused"):
            number.grad = torch.zeros_like(number)
            torch.no_grad()(inspect.unwrap(base.step))(made)  # without the hooks of all optimizers' steps
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{name} cannot be changed: {error}"
    return ""


def sparse_parameters(model: nn.Module) -> set[Tensor]:
    """Return the weights of a model's embeddings whose gradients are sparse."""
    tables = (layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
    return {table.weight for table in tables if table.sparse}


def optimizer_implementation(optimizer: Any) -> str:
    """Return the implementation that an optimizer was told to use; ``default`` when PyTorch chooses."""
    group = optimizer.param_groups[0] if optimizer.param_groups else optimizer.defaults
    otherwise = "for-loop" if group.get("foreach") is False else "default"
    return next((name for name in ("fused", "foreach") if group.get(name)), otherwise)


def set_options(optimizer: Optimizer, sparse: Collection[Tensor] = (), /, **changes: Any) -> None:
    """Change options such as ``fused``, ``foreach`` and ``capturable`` of an optimizer of PyTorch's, in every group.

    Afterwards it steps as one that was constructed with them. Its ``state_dict`` has the keys and values of a plain
    loop, and loading one does not undo the change. Raises RefusedError, and changes nothing, for an option that the
    class does not take or its constructor refuses, and for a class with a step of its own.
    """
    if reason := why_not(optimizer, changes, sparse):
        raise RefusedError(reason)
    plain = plain_options(optimizer)
    plain.update({name: optimizer.defaults[name] for name in changes if name not in plain})
    for options in (optimizer.defaults, *optimizer.param_groups):
        options.update(changes)
    if "fused" in changes:
        vars(optimizer)[UNSCALES] = bool(changes["fused"])
        if changes["fused"] and torch_class(optimizer) is torch.optim.SGD:
            optimizer.register_step_pre_hook(begin_momenta)
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())  # moves the counts of earlier steps


def begin_momenta(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Give parameters of a fused SGD with momentum a momentum of zeros before their first step.

    PyTorch's fused step fails where some parameters have a momentum and others, which joined later, have none.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["fused"] and group["momentum"] else ():
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def watch_first_step(optimizer: Optimizer) -> None:
    """Have an optimizer's first step undo that it was fused where gradients are sparse, with a warning."""
    vars(optimizer)["_was_prepared"] = True
    optimizer.register_step_pre_hook(_without_sparse)


def _without_sparse(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if vars(optimizer).pop("_was_prepared", False) and optimizer.defaults.get("fused"):
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        own = vars(optimizer).get(PLAIN_OPTIONS, {})
        if "fused" in own and any(one is not None and one.is_sparse for one in gradients):
            set_options(optimizer, fused=own["fused"], foreach=own["foreach"])
            warnings.warn("optimizer.implementation: fused is left out: some gradients are sparse.", stacklevel=3)


def on_device(group: Mapping[str, Any]) -> bool:
    """Whether a group's step counts are tensors on the device of its parameters."""
    return bool(group.get("fused") or group.get("capturable"))


def follow_parameters(optimizer: Any) -> None:
    """Give an optimizer's state, and any that it loads later, the memory layout of its parameters.

    Fused kernels read parameters, gradients and state side by side in memory. What is saved is contiguous.
    """
    for one in optimizers_in(optimizer):
        keeper = getattr(one, "_base_optimizer", one)  # a wrapper such as timm's Lookahead has no hooks of its own
        plain_options(keeper)
        _settle(keeper)


def plain_options(optimizer: Any) -> dict[str, Any]:
    """Return the user's own values of the options that were changed.

    The first call for an optimizer adds hooks, so that its saved state has these values.
    """
    options: dict[str, Any] = vars(optimizer).get(PLAIN_OPTIONS, {})
    if PLAIN_OPTIONS not in vars(optimizer):
        vars(optimizer)[PLAIN_OPTIONS] = options
        optimizer.register_state_dict_post_hook(lambda _, saved: _with_options(saved, options))
        optimizer.register_load_state_dict_pre_hook(
            lambda one, loaded: _with_options(loaded, {name: one.defaults[name] for name in options})
        )
        optimizer.register_load_state_dict_post_hook(_settle)
    return options


def _settle(optimizer: Optimizer) -> None:
    """Give an optimizer's state the memory layout of its parameters."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            like = type(value) is Tensor and not value.is_sparse and value.dim() and value.shape == parameter.shape
            if like and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _with_options(saved: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with these options and contiguous tensors.

    Step counts are on the host unless the options need them on the device. The tensors are shared with ``saved``.
    """
    groups = [{**group, **options} for group in saved["param_groups"]]
    counts_on_host = {key for group in groups if not on_device(group) for key in group["params"]}
    state = {key: dict(values) for key, values in saved["state"].items()}
    for key, values in state.items():
        for name, value in values.items():
            if type(value) is Tensor and not value.is_sparse:
                values[name] = value.cpu() if name in COUNTERS and key in counts_on_host else value.contiguous()
    return {**saved, "state": state, "param_groups": groups}


class TensorRates:
    """Learning rates that are numbers for the loop and tensors for a captured step.

    A number would become part of such a step. Outside it the groups hold what the loop and its schedulers put there.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self.optimizer = optimizer
        self.device = device
        self.tensors: list[Tensor] = []
        self._seen: dict[int, Any] = {}

    def refresh(self) -> None:
        """Copy the rates that have changed into the tensors. Nothing waits for the device."""
        for place, group in enumerate(self.optimizer.param_groups):
            rate = group["lr"]
            if place == len(self.tensors):
                self.tensors.append(torch.empty((), dtype=torch.float32, device=self.device))
            if isinstance(rate, Tensor):
                self.tensors[place].copy_(rate.detach().view(()))
            elif rate != self._seen.get(place):
                self.tensors[place].fill_(rate)
            self._seen[place] = rate

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Inside this context the groups hold the tensors."""
        self.refresh()
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            for group, tensor in zip(groups, self.tensors, strict=True):
                group["lr"] = tensor
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def make_capturable(optimizer: Any, device: torch.device) -> None:
    """Let an optimizer count its steps on the device, so that a graph can hold its step; only where its class can."""
    if device.type == "cuda" and "capturable" in optimizer.defaults and torch_class(optimizer) is not None:
        set_options(optimizer, capturable=True)


def updates_without_host(optimizer: Any) -> bool:
    """Whether the optimizer's step can be captured: it counts on the device and reads its learning rate there.

    The hooks of a step are functions on the host, which a graph would leave out.
    """
    before, after = optimizer._optimizer_step_pre_hooks.values(), optimizer._optimizer_step_post_hooks.values()
    has_hooks = any(after) or any(hook not in (begin_momenta, _without_sparse) for hook in before)
    return torch_class(optimizer) is not None and not has_hooks and all(map(on_device, optimizer.param_groups))


def change_class(workload: Components, classes: Collection[str], code: Callable[[], None]) -> None:
    """Have ``code`` turn an optimizer of one of these classes into another class; it stays the same object.

    A scheduler made before goes on; PyTorch warns once that the step is another one. Raises RefusedError for another
    class, for state, and where a package is missing.
    """
    optimizer = workload.optimizer
    name = type(optimizer).__name__
    if name not in classes or not type(optimizer).__module__.startswith("torch.optim"):
        raise RefusedError(f"it takes the place of {' or '.join(classes)}, not of {name}")
    if optimizer.state:
        raise RefusedError(f"{name} has made steps, and another class could not go on from its state: change it before")
    try:
        code()
    except ImportError as error:
        raise RefusedError(f"{error.name} is not installed: pip install {error.name}") from error
    made, workload.optimizer = workload.optimizer, optimizer
    for group, own in zip(made.param_groups, optimizer.param_groups, strict=True):
        group.update({name: value for name, value in own.items() if name not in ("params", *optimizer.defaults)})
    hooks = {name: value for name, value in vars(optimizer).items() if name.endswith("_hooks")}
    vars(optimizer).clear()
    optimizer.__class__ = type(made)
    vars(optimizer).update(vars(made) | hooks)


@dataclass(eq=False)
class Together:
    """The optimizers of one model as one."""

    optimizers: list[Any]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        """The state of all optimizers by parameter. A parameter has state in one optimizer at most."""
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}


def optimizers_in(optimizer: Any) -> list[Any]:
    """Return the single optimizers of a workload's optimizer."""
    if isinstance(optimizer, Together):
        return optimizer.optimizers
    return [] if optimizer is None else [optimizer]
