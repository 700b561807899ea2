"""Records of a watched script: its calls of models and losses, its updates, its loader, and where it stood."""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python.loops import FoundLoop, Line, Pass, Where, loops_around
from advisor.records import Place
from advisor.workloads.scripts.running import Iterators, Pause, Script


class NoLoopError(Exception):
    """Raised, with the reason, where no loop of a script can be measured."""


@dataclass(slots=True)
class ModelCall:
    """A call of a module with parameters, outside any other such call, and the state of autograd and autocast.

    ``trains`` is whether the module was in training mode.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: str
    gradients: str = "grad"
    trains: bool = True

    @property
    def current(self) -> dict[str, Any]:
        """The settings that the call was made under, beside those of inference."""
        return {} if self.autocast == "none" else {"precision.autocast": self.autocast}


@dataclass(slots=True)
class Seen:
    """The observations of a script."""

    script: Script
    pause: Pause | None = None  # where the script was left
    fitted: Any = None  # what a library's trainer was asked to train

    # The data.
    loader: Any = None  # of the step
    batch: Any = None  # that the step used
    reads: set[Line] = field(default_factory=set)  # where it was read, up the stack
    iterators: Iterators = field(default_factory=weakref.WeakKeyDictionary)  # all that the script made

    # The step.
    frames: list[Where] = field(default_factory=list)  # the stack at the first update, innermost first
    called_at: list[Where] = field(default_factory=list)  # the stack at the last call of a model
    made: dict[Any, Place] = field(default_factory=dict)  # the calls that made optimizers and loaders
    calls: list[ModelCall] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)  # backward passes
    updates: list[Optimizer] = field(default_factory=list)
    round: tuple[Sequence[ModelCall], int] | None = None  # the calls and the number of passes up to the last update
    casts: str = "none"  # the type of autocast around a module, also inside another
    clip_norm: float | None = None
    changes_gradients: bool = False  # they were made or clipped in another way than by that norm
    endless: bool = False  # one update is all of the training
    by_hand: bool = False  # no optimizer makes the updates; ``frames`` is the stack at the second backward pass

    # What is no step.
    goes_backward: bool = False  # gradients were computed at some time
    starts_processes: bool = False  # or forks them
    trains_elsewhere: bool = False  # one of them came to an update
    goes_on: bool = False  # it was left while it predicted, without an end in sight

    @property
    def loop(self) -> FoundLoop:
        """The loop that the first update was made in. Raises NoLoopError where no source has one that fits.

        With a loader it is the innermost loop that reads the loader; else the innermost one around the update.
        """
        if not (found := self.loops):
            raise NoLoopError("no loop in the script's own code stands around the update of the weights")
        return next((loop for loop in found if loop.runs(self.reads)), found[0])

    @property
    def loops(self) -> list[FoundLoop]:
        """All loops of the script's own that the first update was made in, innermost first.

        Else those by which a library reads the loader, and not those in which it calls a function that does.
        """
        users = [where for where in self.frames if where.is_users]
        if found := [loop for at, where in enumerate(users) for loop in loops_around(where, users[:at])]:
            return found
        reading = {code for code, _ in self.reads}
        inner = itertools.takewhile(lambda one: not (one.is_users and one.code in reading), self.frames)
        of_library = (loop for where in inner if where.code in reading for loop in loops_around(where))
        return [loop for loop in of_library if loop.runs(self.reads)]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that made an update, each once."""
        return list({id(one): one for one in self.updates}.values())

    @property
    def models(self) -> list[nn.Module]:
        """The modules that were called and have parameters of an optimizer; without an update, any parameters."""
        trained = {id(p) for one in self.updates for p in parameters_in(one)}
        return [m for m in self.called if any(not trained or id(p) in trained for p in m.parameters())]

    @property
    def called(self) -> list[nn.Module]:
        """The modules with parameters that were called, each once."""
        return list({id(call.module): call.module for call in self.calls}.values())


def parameters_in(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def autocast() -> str:
    """The type that autocast casts to at present, ``none`` where it is off."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return "none"


def gradients() -> str:
    """The value of the setting ``infer.grad`` that is in force."""
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    return "grad" if torch.is_grad_enabled() else "no_grad"


def same_values(one: Any, other: Any) -> bool:
    """Whether two nested structures of tensors hold the same values, on any device."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu()))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    return one is other
