"""Training scripts as they are: run up to their loop, watched, and made into a workload without an edit."""

import symtable
from pathlib import Path

from advisor.files.paths import is_file


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
