"""Training scripts as they are: run up to their loop, watched, and made into a workload without an edit."""

import ast
from collections.abc import Iterator
from pathlib import Path

from advisor.files.paths import is_file


def is_script(target: str, directory: str, builder: str) -> bool:
    """Whether a target is the path of a Python file that defines no ``builder`` at its top level."""
    path = Path(directory, target)
    if not target.endswith(".py") or not is_file(path):
        return False
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return False  # importing it says where
    return builder not in {name for statement in tree.body for name in _bound_by(statement)}


# What a script for torchrun reads or calls, itself or in a module beside it: Accelerate does the rest for its own.
_OF_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "init_process_group", "init_device_mesh", "Accelerator"})


def is_for_ranks(target: str, directory: str) -> bool:
    """Whether a script is written to be started by torchrun, as it or the modules beside it that it imports say."""
    waiting, read = [Path(directory, target)], set[Path]()
    while waiting:
        path = waiting.pop()
        read.add(path)
        try:
            nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace")))]
        except (OSError, SyntaxError, ValueError):
            continue
        if any(getattr(node, name, None) in _OF_RANKS for node in nodes for name in ("value", "id", "attr", "name")):
            return True
        beside = (Path(path.parent, f"{name.replace('.', '/')}.py") for name in _imported(nodes))
        waiting += {one for one in beside if one.is_file()} - read
    return False


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    """The names of the modules that are imported, and of what is imported from them, which may be modules too."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = f"{node.module}." if node.module else ""
            yield from (package[:-1], *(package + alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top level of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return []
