"""Several optimizers of one model, as recipes and the plan see them."""

from collections.abc import Sequence
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
    def state(self) -> dict[torch.Tensor, Any]:
        """The state of all, by parameter: each has its own in one of them at most."""
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}

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


def optimizers_in(optimizer: Any) -> list[Any]:
    """The single optimizers of a workload's optimizer."""
    if isinstance(optimizer, Together):
        return optimizer.optimizers
    return [] if optimizer is None else [optimizer]
