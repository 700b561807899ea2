"""Training scripts as they are: run up to their loop, watched, and made into a workload without an edit."""

import ast
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


def _bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top level of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return []
