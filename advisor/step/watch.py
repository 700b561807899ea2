"""The changes that a captured step looks for before a replay, and copies of its state, to run a step twice."""

import operator
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from advisor.step.near import PLAIN, Place
from advisor.step.optimizer import options_of
from advisor.step.wrappers import unwrapped

_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_GRADIENT = operator.attrgetter("grad")
_STATE = operator.attrgetter("state")
OPTIONS = "options of the optimizer changed"


class Watch:
    """Tells what changed around a captured step since the watch was made. Looking takes microseconds.

    ``kept`` are parameters whose gradients the step adds to.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        places: Sequence[Place],
        optimizers: Sequence[Any],
        kept: Sequence[torch.Tensor],
    ) -> None:
        modules, parameters = list(unwrapped(model).modules()), list(unwrapped(model).parameters())
        attributes = list(map(vars, modules))
        parts: list[Any] = [one for module in modules for one in (module._parameters, module._buffers, module._modules)]
        parts = [part for part in parts if part and isinstance(part, dict)]  # TorchScript has no dictionaries
        placed = [one for one in parameters if one.layout is torch.strided and not hasattr(one, "__tensor_flatten__")]
        hooks = [getattr(module, name) for module in modules for name in ("_forward_hooks", "_forward_pre_hooks")]
        states = [optimizer.state for optimizer in optimizers]
        values = _reader([place for place in places if type(place.value()) in PLAIN])
        tensors = _reader([place for place in places if isinstance(place.value(), torch.Tensor)])
        checks: list[tuple[str, Callable[[], Any]]] = [
            ("other layers are in training mode", lambda: list(map(dict.get, attributes, repeat("training")))),
            ("layers or parameters were replaced", lambda: list(map(id, chain.from_iterable(map(dict.values, parts))))),
            ("the memory of a parameter changed", lambda: list(map(torch.Tensor.data_ptr, placed))),
            ("other parameters require gradients", lambda: list(map(_REQUIRES_GRAD, parameters))),
            ("hooks were added or removed", lambda: sum(map(len, hooks))),
            ("a number near the step changed", values),
            ("a tensor near the step was replaced", lambda: list(map(id, tensors()))),
            ("a gradient was cleared", lambda: list(map(id, map(_GRADIENT, kept)))),
            ("the optimizer loaded a state", lambda: list(map(operator.is_, map(_STATE, optimizers), states))),
            (OPTIONS, lambda: [option for optimizer in optimizers for option in options_of(optimizer)]),
        ]
        self._checks = [(words, read, read()) for words, read in checks]

    def changed(self) -> str:
        """The first change, in words; empty where there is none."""
        for words, read, before in self._checks:
            if read() != before:
                return words
        return ""


def _reader(places: Sequence[Place]) -> Callable[[], list[Any]]:
    """A function that reads the values of places: names in dictionaries by a function in C."""
    named = [place for place in places if isinstance(place.holder, dict)]
    others = [place for place in places if not isinstance(place.holder, dict)]
    holders, names = [place.holder for place in named], [place.name for place in named]
    return lambda: [*map(dict.get, holders, names), *(place.value() for place in others)]  # type: ignore[arg-type]


class Saved:
    """Copies of tensors and the state of the device's generator, from which a step can be run a second time."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.generator = torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
        self.draws = self.generator.get_state()
        self.copies = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def drew(self) -> bool:
        """Whether random numbers were drawn since."""
        return not torch.equal(self.generator.get_state(), self.draws)

    @torch.no_grad()
    def moved(self) -> torch.Tensor:
        """The distance of the tensors from the copies: the norm of all differences."""
        moved = [(tensor - copied).float().norm() for tensor, copied in self.copies if tensor.is_floating_point()]
        return torch.stack([one.to(self.generator.device) for one in moved]).norm() if moved else torch.zeros(())

    @torch.no_grad()
    def restore(self) -> None:
        """Give the tensors and the generator back what was saved."""
        for tensor, copied in self.copies:
            tensor.copy_(copied)
        self.generator.set_state(self.draws)
