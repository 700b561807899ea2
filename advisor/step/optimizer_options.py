"""Options of an optimizer, changed in place: schedulers, hooks and references to it go on working."""

import contextlib
import inspect
import typing
import weakref

import torch
from torch.optim.optimizer import _device_dtype_check_for_fused

# State that PyTorch's optimizers count steps with. It stands on the device where the step asks no host.
COUNTERS = frozenset({"step", "mu_product", "eta", "mu"})


IMPLEMENTATIONS: dict[str, dict[str, bool | None]] = {
    "default": {"fused": None, "foreach": None},
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "for-loop": {"fused": False, "foreach": False},
}


def use_implementation(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Have an optimizer update its parameters by one of ``IMPLEMENTATIONS``; ``default`` is PyTorch's own choice.

    Raises ValueError, and changes nothing, where its class has no such implementation or refuses it.
    """
    offered = implementations_of_class(type(optimizer))
    if name != "default" and name not in offered:
        raise ValueError(f"{type(optimizer).__name__} has no {name} implementation; it has {', '.join(offered)}")
    set_options(optimizer, **{flag: value for flag, value in IMPLEMENTATIONS[name].items() if flag in offered})


def implementations_of_class(cls: type) -> tuple[str, ...]:
    """The implementations that an optimizer class offers, out of ``for-loop``, ``foreach`` and ``fused``.

    A class with a step of its own offers that one only, whatever arguments it takes.
    """
    base = class_of_step(cls)
    accepted = inspect.signature(base).parameters if base is not None else ()
    return ("for-loop", *(name for name in ("foreach", "fused") if name in accepted))


def set_options(optimizer: torch.optim.Optimizer, **changes: typing.Any) -> None:
    """Change options such as ``fused``, ``foreach`` and ``capturable`` of an optimizer of PyTorch's, in every group.

    Afterwards it steps as one that was constructed with them. What it saves stays what a plain loop saves and loads,
    and loading does not undo the change. Raises ValueError, and changes nothing, where the class takes no such
    option, where its constructor refuses it, or where the optimizer runs a step of its own.
    """
    if not changes:
        return
    base = torch_class(optimizer)
    flags = flags_with(base, optimizer, changes)
    kept = PlainState.of(optimizer)
    kept.remember(optimizer, changes)
    for options in (optimizer.defaults, *optimizer.param_groups):
        options.update(changes)
    for flag in ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"):
        vars(optimizer).pop(flag, None)
        vars(optimizer).update({flag: True} if any(flag in found for found in flags) else {})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            settle_state(optimizer.state.get(parameter, {}), parameter, on_device(group))
    if base is torch.optim.SGD and "_init_group" not in vars(optimizer):
        begin_momenta(optimizer)


def flags_with(
    base: type[torch.optim.Optimizer] | None, optimizer: torch.optim.Optimizer, changes: dict[str, typing.Any]
) -> list[set[str]]:
    """The flags of each group of an optimizer that is constructed with changed options. Raises ValueError."""
    name = type(optimizer).__name__
    if base is None:
        raise ValueError(f"{name} has a step of its own, which may not know the options of PyTorch's optimizers")
    if unknown := [option for option in changes if option not in optimizer.defaults]:
        raise ValueError(f"{name} takes no option {', '.join(unknown)}")
    try:
        return [flags_of(base, {**group, **changes}) for group in optimizer.param_groups]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} cannot be changed: {error}") from error


def begin_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Have a fused SGD begin each momentum as an unfused one does, also that of a parameter which joins later.

    PyTorch's fused step fails where some parameters have a momentum and others have none yet. It leaves memory that
    nothing was written to where a scaler skips the first step.
    """
    owner = weakref.ref(optimizer)  # an attribute of the optimizer itself: it must not keep it alive

    def init_group(
        group: dict[str, typing.Any],
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        momenta: list[torch.Tensor | None],
    ) -> typing.Any:
        own: typing.Any = owner()
        found = type(own)._init_group(own, group, params, grads, momenta)
        if group["fused"] and any(momentum is None for momentum in momenta):
            pairs = zip(params, momenta, strict=True)
            momenta[:] = [torch.zeros_like(p) if momentum is None else momentum for p, momentum in pairs]
        return found

    vars(optimizer)["_init_group"] = init_group


def follow_layout(optimizer: typing.Any) -> None:
    """Give an optimizer's state, and any that it loads later, the memory layout of its parameters.

    Fused kernels read parameters, gradients and state side by side in memory. What is saved is contiguous.
    """
    for one in map(keeper_of_state, getattr(optimizer, "optimizers", [optimizer])):
        PlainState.of(one).contiguous = True
        for group in one.param_groups:
            for parameter in group["params"]:
                settle_state(one.state.get(parameter, {}), parameter, on_device(group))


def follow_rows(optimizer: typing.Any, rows: dict[torch.Tensor, int]) -> None:
    """Save and load the state of parameters without the rows of zeros that they have beyond these."""
    for one in map(keeper_of_state, getattr(optimizer, "optimizers", [optimizer])):
        PlainState.of(one).rows.update(rows)


def keeper_of_state(optimizer: typing.Any) -> typing.Any:
    """An optimizer, or the one inside a wrapper that has no hooks for what it saves, as timm's Lookahead."""
    if hasattr(optimizer, "_optimizer_state_dict_post_hooks"):
        return optimizer
    return next((one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer)), optimizer)


def torch_class(optimizer: torch.optim.Optimizer) -> typing.Any:
    """The class of torch.optim whose step an optimizer runs; None for a step of its own."""
    replaced = vars(optimizer).get("step")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return None
    return class_of_step(type(optimizer))


def class_of_step(cls: type) -> typing.Any:
    """The class of PyTorch's that a class of optimizers inherits its step from; None where it has its own."""
    owners = [next((base for base in cls.__mro__ if name in vars(base)), object) for name in ("step", "_init_group")]
    ours = owners[0].__module__.startswith("torch.optim") and owners[0] is not torch.optim.Optimizer
    return owners[0] if ours and (owners[1] is object or owners[1].__module__.startswith("torch.optim")) else None


def flags_of(base: typing.Any, group: dict[str, typing.Any]) -> set[str]:
    """The attributes that a constructor sets for a group's options. Raises what it raises."""
    if group.get("fused"):
        if base is torch.optim.SGD and group["momentum"] and group["dampening"]:
            raise RuntimeError("a fused step would dampen the first gradient of a parameter that joins later")
        kinds = {(parameter.device, parameter.dtype): parameter for parameter in group["params"]}
        for parameter in kinds.values():
            _device_dtype_check_for_fused(parameter, cuda_unsupported=base is torch.optim.Adagrad)
    taken = inspect.signature(base).parameters
    options = {name: value for name, value in group.items() if name in taken and name != "params"}
    return set(vars(base([torch.zeros(1)], **options)))


def on_device(group: typing.Mapping[str, typing.Any]) -> bool:
    """Whether a group's step counts are tensors on the device of its parameters."""
    return bool(group.get("fused") or group.get("capturable"))


def settle_state(state: dict[typing.Any, typing.Any], parameter: torch.Tensor, there: bool) -> None:
    """Put a parameter's state where its step reads it: counters on its device or the host, the rest in its layout."""
    place_counters(state, parameter.device, there)
    for name, value in state.items():
        if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def place_counters(state: dict[typing.Any, typing.Any], device: torch.device, there: bool) -> None:
    """Bring the counters of a parameter's state to its device, or to the host."""
    for name in COUNTERS & state.keys():
        if isinstance(state[name], torch.Tensor):
            state[name] = state[name].to(device, torch.float32) if there else state[name].cpu()


class PlainState:
    """An optimizer's options as its owner gave them: hooks that save those, and that keep the present ones in loading.

    As in a plain loop, an optimizer goes on with the very tensors that it loads.
    """

    def __init__(self) -> None:
        self.defaults: dict[str, typing.Any] = {}
        self.groups: list[dict[str, typing.Any]] = []
        self.contiguous = False
        self.rows: dict[torch.Tensor, int] = {}

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> "PlainState":
        """The record of an optimizer; made, with its hooks, when there is none yet."""
        for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
            if isinstance(owner := getattr(hook, "__self__", None), cls):
                return owner
        made = cls()
        optimizer.register_state_dict_post_hook(made.save)
        optimizer.register_load_state_dict_pre_hook(made.before_loading)
        optimizer.register_load_state_dict_post_hook(made.after_loading)
        return made

    def remember(self, optimizer: torch.optim.Optimizer, changes: typing.Iterable[str]) -> None:
        """Note the owner's values of options before they are changed for the first time."""
        for name in changes:
            self.defaults.setdefault(name, optimizer.defaults[name])
        for place, group in enumerate(optimizer.param_groups):
            if place == len(self.groups):
                self.groups.append({})
            for name in changes:
                self.groups[place].setdefault(name, group[name])

    def plain(self, place: int) -> dict[str, typing.Any]:
        """The owner's options of a group; of a group that was added later, those of the constructor."""
        return {**self.defaults, **(self.groups[place] if place < len(self.groups) else {})}

    def save(self, optimizer: torch.optim.Optimizer, saved: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the state that a plain optimizer would save; it shares tensors with this one, as usual."""
        groups = [{**group, **self.plain(place)} for place, group in enumerate(saved["param_groups"])]
        state = dict(saved["state"])
        for group, own in zip(groups, optimizer.param_groups, strict=True):
            for key, parameter in zip(group["params"], own["params"], strict=True):
                if key in state:
                    state[key] = dict(state[key])
                    place_counters(state[key], parameter.device, on_device(group))
                    if parameter in self.rows:
                        cut_state(state[key], parameter, self.rows[parameter])
                    if self.contiguous:
                        kept = [(name, value) for name, value in state[key].items() if type(value) is torch.Tensor]
                        state[key].update((name, value.contiguous()) for name, value in kept)
        return {**saved, "state": state, "param_groups": groups}

    def before_loading(self, optimizer: torch.optim.Optimizer, loaded: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the loaded state with the present options in place of the saved ones."""
        if len(loaded["param_groups"]) != len(optimizer.param_groups):
            return loaded  # PyTorch says what is wrong
        self.groups = [{n: group.get(n, self.defaults[n]) for n in self.defaults} for group in loaded["param_groups"]]
        pairs = zip(loaded["param_groups"], optimizer.param_groups, strict=True)
        groups = [{**group, **{name: own[name] for name in self.defaults}} for group, own in pairs]
        return {**loaded, "param_groups": groups}

    def after_loading(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the loaded state to where the step reads it."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if parameter in self.rows:
                    lengthen_state(state, parameter, self.rows[parameter])
                settle_state(state, parameter, on_device(group))


def cut_state(state: dict[typing.Any, typing.Any], parameter: torch.Tensor, rows: int) -> None:
    """Take the rows of zeros out of a parameter's state."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            state[name] = value[:rows]


def lengthen_state(state: dict[typing.Any, typing.Any], parameter: torch.Tensor, rows: int) -> None:
    """Give a parameter's state rows of zeros as the parameter has them."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == (rows, *parameter.shape[1:]):
            state[name] = value.new_zeros(parameter.shape)
            state[name][:rows] = value


class TensorRates:
    """Learning rates that are numbers for the loop and tensors for a compiled or captured step.

    A number would become part of such a step. Outside it the groups hold what the loop and its schedulers put there.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer = optimizer
        self.device = device
        self.tensors: list[torch.Tensor] = []
        self.seen: list[object] = []

    def refresh(self) -> None:
        """Copy the rates that have changed into the tensors. Nothing asks the device."""
        for place, group in enumerate(self.optimizer.param_groups):
            rate = group["lr"]
            now = (rate, rate._version) if isinstance(rate, torch.Tensor) else rate
            if place == len(self.tensors):
                self.tensors.append(torch.as_tensor(rate, dtype=torch.float32).to(self.device).clone())
                self.seen.append(now)
            elif not same_rate(now, self.seen[place]):
                copied = self.tensors[place]
                copied.copy_(rate.detach().view(())) if isinstance(rate, torch.Tensor) else copied.fill_(rate)
                self.seen[place] = now

    @contextlib.contextmanager
    def inside(self) -> typing.Iterator[None]:
        """Inside this context the groups hold the tensors. A rate that is set there stays, as by a scheduler."""
        self.refresh()
        groups = list(self.optimizer.param_groups)
        before = [(group["lr"], tensor._version) for group, tensor in zip(groups, self.tensors, strict=True)]
        try:
            for group, tensor in zip(groups, self.tensors, strict=True):
                group["lr"] = tensor
            yield
        finally:
            for group, tensor, (rate, version) in zip(groups, self.tensors, before, strict=True):
                if group["lr"] is tensor:
                    written = tensor._version != version
                    group["lr"] = set_rate(rate, tensor) if written else rate


def set_rate(rate: typing.Any, to: torch.Tensor) -> typing.Any:
    """A rate with another value: a tensor is filled in place, as schedulers do; a number becomes another."""
    return rate.copy_(to) if isinstance(rate, torch.Tensor) else to.item()


def same_rate(one: typing.Any, other: typing.Any) -> bool:
    """Whether two rates, each a number or a tensor with its version, are the same."""
    if isinstance(one, tuple) or isinstance(other, tuple):
        both = isinstance(one, tuple) and isinstance(other, tuple)
        return both and one[0] is other[0] and one[1] == other[1]
    return bool(one == other)


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Tell schedulers that a step has run without ``optimizer.step()``: else they warn that they are called first."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        vars(optimizer)["_opt_called"] = True


def options_of(optimizer: typing.Any) -> list[typing.Any]:
    """The options of an optimizer's groups but the learning rate, which a captured update reads in a tensor."""
    names = [name for name in optimizer.defaults if name != "lr"]
    return [group.get(name) for group in optimizer.param_groups for name in names]
