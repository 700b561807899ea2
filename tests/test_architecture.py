"""The process of the user's interface holds neither torch nor, outside the app, textual: each in a new interpreter."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

WITHOUT_TORCH = [
    *("advisor", "advisor.cli.main", "advisor.cli.grammar", "advisor.machine.hardware", "advisor.headless.run"),
    *("advisor.runner.trials", "advisor.recipe.catalog", "advisor.experiment.session", "advisor.export.outputs"),
    "advisor.workloads.demo",
]


def printed_by(code):
    """The words that a program prints in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_them_loads_nothing_heavy():
    """Else each heavy package is printed with the module that loads it."""
    code = (
        "import sys, importlib\n"
        f"for name in {WITHOUT_TORCH!r}:\n"
        "    importlib.import_module(name)\n"
        "    print(*(f'{name}:{heavy}' for heavy in ('torch', 'textual', 'numpy', 'PIL') if heavy in sys.modules))\n"
    )
    assert printed_by(code) == []


def test_the_app_opens_without_torch_and_without_what_its_first_picture_does_not_need():
    code = (
        "import sys\nfrom advisor.cli.grammar import parse\nparse(['demo'])\nimport advisor.tui.launch\n"
        "late = ('torch', 'yaml', 'importlib.metadata', 'advisor.cli.commands.init', 'advisor.trial', 'advisor.step')\n"
        "print(*(name for name in late if name in sys.modules))"
    )
    assert printed_by(code) == []


def test_the_app_uses_nothing_private_of_textual():
    """A private name that no module of the app defines is another package's, as is a module with a private name."""
    files = Path(importlib.util.find_spec("advisor.tui").origin).parent.rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    defined |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in attributes if node.attr.startswith("_") and not node.attr.startswith("__")}
    imported = {f"{one.module}.{name.name}" for one in nodes if isinstance(one, ast.ImportFrom) for name in one.names}
    assert used - defined == set()
    assert [name for name in imported if name.startswith("textual") and "._" in name] == []
