"""Processes that a script starts: one that trains ends at its first update, with an exit code that says so."""

import os
import sys
from collections.abc import Callable

# Exit code of a process that has come to an update of weights; programs and signals use others.
TRAINED = 91


class EndsAtUpdate:
    """An attribute of a process that is pickled for a new interpreter; a forked one has its parent's hooks already."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return end_at_update, ()


def end_at_update() -> None:
    """Have this process end at its first update. Nothing happens where the script has not imported torch."""
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *_: os._exit(TRAINED))
