"""Optimizers that become one of another class, in place, before they have made a step."""

import importlib
import inspect
import typing

import torch

# Classes that keep two moments of every gradient: what Adam is known for.
ADAM_KIN = (torch.optim.Adam, torch.optim.AdamW)
EIGHT_BIT_PACKAGES = ("bitsandbytes.optim", "torchao.optim")


def make_state_small(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Give Adam or AdamW less state: ``adafactor`` keeps rows and columns of a moment, ``8-bit`` both in 8 bits.

    Raises ValueError for another optimizer and one that has made a step, and ImportError when no package with 8-bit
    optimizers is installed.
    """
    if type(optimizer) not in ADAM_KIN:
        raise ValueError(f"{type(optimizer).__name__} is neither Adam nor AdamW, whose state could be made smaller")
    if kind == "adafactor":
        become(optimizer, torch.optim.Adafactor, ("lr", "weight_decay", "maximize"))
        return
    decoupled = type(optimizer) is torch.optim.AdamW
    cls = first_found(EIGHT_BIT_PACKAGES, "AdamW8bit" if decoupled else "Adam8bit")
    become(optimizer, cls, ("lr", "betas", "eps", "weight_decay"))


def use_layer_rates(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Put ``lars`` in place of SGD or ``lamb`` in place of Adam, which have a rate for each tensor.

    Raises ValueError for another optimizer and one that has made a step, and ImportError without timm.
    """
    kin, name, options = {
        "lars": ((torch.optim.SGD,), "Lars", ("lr", "momentum", "weight_decay", "nesterov")),
        "lamb": (ADAM_KIN, "Lamb", ("lr", "betas", "eps", "weight_decay")),
    }[kind]
    if type(optimizer) not in kin:
        raise ValueError(
            f"{name} takes the place of {kin[0].__name__}, and the optimizer is {type(optimizer).__name__}"
        )
    become(optimizer, first_found(("timm.optim",), name), options)


def become(optimizer: torch.optim.Optimizer, cls: typing.Any, options: tuple[str, ...]) -> None:
    """Make an optimizer one of another class, with these options of its groups where the class takes them.

    It stays the same object with the same groups, and keeps its hooks and what others have put into its groups.
    """
    name, replaced = type(optimizer).__name__, vars(optimizer).get("step")
    if optimizer.state:
        raise ValueError(f"{name} has made steps, and {cls.__name__} could not go on from its state: change it before")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        raise ValueError(f"the step of this {name} was replaced, and {cls.__name__} would lose that")
    taken = [option for option in options if option in inspect.signature(cls).parameters]
    moved = [option for option in ("betas", "momentum") if option in optimizer.defaults and option not in taken]
    if moved and any("max_momentum" in group for group in optimizer.param_groups):
        raise ValueError(f"a scheduler moves the {moved[0]} of this {name}, and {cls.__name__} has none")
    made = cls([regrouped(optimizer, group, taken) for group in optimizer.param_groups], lr=optimizer.defaults["lr"])
    hooks = {key: value for key, value in vars(optimizer).items() if key.startswith("_optimizer_")}
    groups = optimizer.param_groups
    for group, changed in zip(groups, made.param_groups, strict=True):
        group.clear()
        group.update(changed)
    vars(optimizer).clear()
    vars(optimizer).update({**vars(made), **hooks, "param_groups": groups})
    optimizer.__class__ = cls
    if replaced is not None:
        tell_schedulers(optimizer)
    optimizer.register_load_state_dict_pre_hook(refuse_other_state)


def regrouped(
    optimizer: torch.optim.Optimizer, group: dict[str, typing.Any], taken: list[str]
) -> dict[str, typing.Any]:
    """A parameter group without the options of its optimizer's class, except those in ``taken``."""
    return {key: value for key, value in group.items() if key not in optimizer.defaults or key in taken}


def tell_schedulers(optimizer: torch.optim.Optimizer) -> None:
    """Note each step as a learning-rate scheduler does, which warns when it comes before the optimizer."""

    def step(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        vars(optimizer)["_opt_called"] = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    vars(step)["_wrapped_by_lr_sched"] = True
    vars(optimizer)["step"] = step


def refuse_other_state(optimizer: torch.optim.Optimizer, loaded: dict[str, typing.Any]) -> None:
    """Raise ValueError for a checkpoint of another class of optimizer, whose state means something else."""
    for group, own in zip(loaded["param_groups"], optimizer.param_groups, strict=False):
        if missing := [option for option in optimizer.defaults if option in own and option not in group]:
            raise ValueError(
                f"the checkpoint is of another optimizer than {type(optimizer).__name__}: it has no {missing[0]}. Load "
                "it without the setting that replaces the optimizer, or train from the start"
            )


def first_found(modules: tuple[str, ...], name: str) -> typing.Any:
    """A class by its name, out of the first of these modules that is installed."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise ImportError(f"{name} needs one of these packages: {', '.join(module.split('.')[0] for module in modules)}")
