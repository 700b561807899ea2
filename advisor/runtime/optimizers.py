"""Several optimizers of one model, as recipes and the plan see them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch


class Together:
    """The optimizers of one model as recipes for the model see them: all groups, all state.

    ``fresh`` are those that no setting about optimizers has been applied to.
    """

    def __init__(self, optimizers: Sequence[Any], fresh: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)
        self.fresh = list(fresh)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> _States:
        """The state of all."""
        return _States([optimizer.state for optimizer in self.optimizers])

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of the first."""
        return self.optimizers[0].defaults  # type: ignore[no-any-return]

    def state_dict(self) -> list[dict[str, Any]]:
        """The state dicts of all."""
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Give each its own."""
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


class _States(MutableMapping[torch.Tensor, Any]):
    """Several optimizers' states as one; each parameter has its state in one of them at most."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = states

    def _holder(self, parameter: torch.Tensor) -> Any:
        holder = next((state for state in self.states if parameter in state), None)
        if holder is None:
            raise KeyError(parameter)
        return holder

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        return self._holder(parameter)[parameter]

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        self._holder(parameter)[parameter] = state

    def __delitem__(self, parameter: torch.Tensor) -> None:
        del self._holder(parameter)[parameter]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (parameter for state in self.states for parameter in state)

    def __len__(self) -> int:
        return sum(map(len, self.states))


def optimizers_in(optimizer: Any) -> list[Any]:
    """The single optimizers of a workload's optimizer."""
    if isinstance(optimizer, Together):
        return optimizer.optimizers
    return [] if optimizer is None else [optimizer]
