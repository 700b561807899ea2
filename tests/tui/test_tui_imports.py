"""No module of the app imports one that imports it in turn, also late or for types only."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import advisor.tui

ROOT = Path(advisor.tui.__file__).parent


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The modules of the app that a file imports, wherever in it."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
    named = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {node.module for node in nodes}
    return named & modules


def test_there_is_no_circle_of_imports() -> None:
    files = {
        ".".join(("advisor", "tui", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    packages = {name for name, path in files.items() if path.name == "__init__.py"}
    graph = {name: imports_of(path, set(files)) - {name} for name, path in files.items()}
    for name in packages - {"advisor.tui.views"}:
        graph[name] = set()
    graph["advisor.tui.views"] -= {"advisor.tui.views.base"}  # every view's module is under it, and so after it
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError
