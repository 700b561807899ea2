"""Checks around a captured step: for changes that a graph cannot follow, and of the state that a step changes."""

import math
import operator
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from advisor.step.near import PLAIN, Place
from advisor.step.optimizer import options_of
from advisor.step.wrappers import unwrapped

# Relative difference of the sizes of two updates from the same state.
_SAME_UPDATE = 5e-2
_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_GRADIENT = operator.attrgetter("grad")
OPTIONS = "options of the optimizer changed"


class Numbers:
    """The plain values at some places."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.values = [(place, value) for place in places if type(value := place.value()) in PLAIN]

    def changed(self) -> str:
        """The name of a value that is another now; empty where none is."""
        return next((place.name for place, value in self.values if [place.value()] != [value]), "")

    def put_back(self) -> None:
        """Give the places their values back."""
        for place, value in self.values:
            place.put(value)


class Watch:
    """Tells what changed around a captured step since the watch was made. Looking takes microseconds."""

    def __init__(
        self,
        model: torch.nn.Module,
        places: Sequence[Place],
        optimizers: Sequence[Any],
        kept: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        modules = list(unwrapped(model).modules())
        attributes = [vars(module) for module in modules if "training" in vars(module)]
        parts: list[Any] = [one for module in modules for one in (module._parameters, module._buffers, module._modules)]
        parts = [part for part in parts if isinstance(part, dict) and part]
        parameters = list(unwrapped(model).parameters())
        placed = [one for one in parameters if one.layout is torch.strided and not hasattr(one, "__tensor_flatten__")]
        hooks = [getattr(module, name) for module in modules for name in ("_forward_hooks", "_forward_pre_hooks")]
        plain = [place for place in places if type(place.value()) in PLAIN]
        tensors = [place for place in places if isinstance(place.value(), torch.Tensor)]
        values, objects, with_kept = _reader(plain), _reader(tensors), [parameter for parameter, _ in kept]
        self._checks: list[tuple[str, Callable[[], Any]]] = [
            ("other layers are in training mode", lambda: list(map(dict.get, attributes, repeat("training")))),
            ("layers or parameters were replaced", lambda: list(map(id, chain.from_iterable(map(dict.values, parts))))),
            ("the memory of a parameter changed", lambda: list(map(torch.Tensor.data_ptr, placed))),
            ("other parameters require gradients", lambda: list(map(_REQUIRES_GRAD, parameters))),
            ("hooks were added or removed", lambda: sum(map(len, hooks))),
            ("a number near the step changed", values),
            ("a tensor near the step was replaced", lambda: list(map(id, objects()))),
            ("a gradient was cleared", lambda: list(map(id, map(_GRADIENT, with_kept)))),
            (OPTIONS, lambda: [option for optimizer in optimizers for option in options_of(optimizer)]),
        ]
        self._remembered = [read() for _, read in self._checks]

    def changed(self) -> str:
        """The first change, in words; empty where there is none."""
        for (words, read), before in zip(self._checks, self._remembered, strict=True):
            if read() != before:
                return words
        return ""


def _reader(places: Sequence[Place]) -> Callable[[], list[Any]]:
    """A function that reads the values of places: names in dictionaries by a function in C."""
    named = [place for place in places if isinstance(place.holder, dict)]
    others = [place for place in places if not isinstance(place.holder, dict)]
    holders, names = [place.holder for place in named], [place.name for place in named]
    return lambda: [*map(dict.get, holders, names), *(place.value() for place in others)]  # type: ignore[arg-type]


def numbers_of_modules(model: torch.nn.Module) -> list[Place]:
    """Places of plain attributes of a model's modules; of PyTorch's own only numbers with a point, such as rates."""
    found = []
    for module in unwrapped(model).modules():
        of_torch = type(module).__module__.startswith("torch.nn.")
        for name, value in vars(module).items():
            if type(value) is float or (type(value) in PLAIN and not of_torch and not name.startswith("_")):
                found.append(Place(vars(module), name))
    return [place for place in found if place.name != "training"]


class Saved:
    """Copies of tensors and of the device's random state, so that a step can be run twice from the same state."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        self.device = device
        self.drew = False
        self._copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._draws = self._random_state()
        self._moved = 0.0

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], device: torch.device) -> "Saved | None":
        """The copies; None where they would take more than a quarter of the free memory."""
        needed = sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)
        plain = all(tensor.layout is torch.strided for tensor in tensors)
        room = device.type != "cuda" or needed < torch.cuda.mem_get_info(device)[0] / 4
        return cls(tensors, device) if plain and room else None

    def note(self) -> None:
        """Note how far the tensors moved since, and whether random numbers were drawn."""
        self._moved = self._distance()
        self.drew = not torch.equal(self._random_state(), self._draws)

    def moved_alike(self) -> bool:
        """Whether the tensors are as far from the copies now as they were at ``note``."""
        return math.isclose(self._distance(), self._moved, rel_tol=_SAME_UPDATE, abs_tol=1e-6)

    @torch.no_grad()
    def restore(self) -> None:
        """Give the tensors and the random state back what was saved."""
        for tensor, copied in self._copies:
            tensor.copy_(copied)
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._draws, self.device)
        else:
            torch.set_rng_state(self._draws)

    @torch.no_grad()
    def _distance(self) -> float:
        moved = [(tensor - copied).float().norm() for tensor, copied in self._copies if tensor.is_floating_point()]
        return float(torch.stack([one.to(self.device) for one in moved]).norm()) if moved else 0.0

    def _random_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()
