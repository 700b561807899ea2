"""Training scripts as they are: run up to their loop, watched, and made into a workload without an edit."""

import os
import symtable
import sys
from collections.abc import Callable
from pathlib import Path

from advisor.files.paths import is_file

TRAINED = 91  # exit code of a process that has come to an update of weights; programs and signals use others


def is_script(target: str, directory: str, builder: str) -> bool:
    """Whether a target is the path of a Python file that defines no ``builder`` at its top level."""
    path = Path(directory, target)
    if not target.endswith(".py") or not is_file(path):
        return False
    try:
        names = symtable.symtable(path.read_text(encoding="utf-8", errors="replace"), target, "exec").get_symbols()
    except (SyntaxError, ValueError):
        return False  # importing it says where
    return not any(one.get_name() == builder and (one.is_assigned() or one.is_imported()) for one in names)


class EndsAtUpdate:
    """An attribute of a process that is pickled for a new interpreter; a forked one has its parent's hooks already."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return end_at_update, ()


def end_at_update() -> None:
    """Have this process end at its first update. Nothing happens where the script has not imported torch."""
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *_: os._exit(TRAINED))
