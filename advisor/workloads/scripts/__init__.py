"""Turn a training script into a workload without an edit: run it up to its loop, and watch its first step."""

import os
import symtable
import sys
from collections.abc import Callable
from pathlib import Path

from advisor.files.paths import is_file

TRAINED = 91  # the exit code of a process that reached a weight update; programs and signals use other codes


def is_script(target: str, directory: str, builder: str) -> bool:
    """Whether a target is the path of a Python file that defines no ``builder`` at its top level."""
    path = Path(directory, target)
    if not target.endswith(".py") or not is_file(path):
        return False
    try:
        names = symtable.symtable(path.read_text(encoding="utf-8", errors="replace"), target, "exec").get_symbols()
    except (SyntaxError, ValueError):
        return False  # the import will report the line
    return not any(one.get_name() == builder and (one.is_assigned() or one.is_imported()) for one in names)


class EndsAtUpdate:
    """Ends a spawned process at its first update, when it is unpickled there. A forked process inherits the hooks."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return end_at_update, ()


def end_at_update() -> None:
    """Make this process end at its first weight update. Do nothing if the script has not imported torch."""
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *_: os._exit(TRAINED))
