"""The process of the user's interface holds neither torch nor, outside the app, textual: each in a new interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

WITHOUT_TORCH = [
    "advisor",
    "advisor.cli.main",
    "advisor.cli.grammar",
    "advisor.headless.run",
    "advisor.runner.trials",
    "advisor.recipe.catalog",
    "advisor.experiment.session",
    "advisor.export.outputs",
]


def loaded_with(*modules):
    """The heavy packages that importing these modules one after another loads, each with the module that loads it."""
    code = (
        "import sys, importlib\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    print(*(f'{name}:{heavy}' for heavy in ('torch', 'textual', 'numpy') if heavy in sys.modules))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_them_loads_neither_torch_nor_textual():
    assert loaded_with(*WITHOUT_TORCH) == []


def test_loading_the_recipes_loads_neither():
    code = (
        "import sys\nfrom advisor.recipe.catalog import load_catalog\nassert load_catalog().recipes\n"
        "print(*(name for name in ('torch', 'textual') if name in sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == []


@pytest.mark.skipif(importlib.util.find_spec("advisor.tui") is None, reason="there is no app")
def test_the_app_opens_without_torch_and_without_what_its_first_picture_does_not_need():
    code = (
        "import sys\nfrom advisor.cli.grammar import parse\nparse(['demo'])\nimport advisor.tui.launch\n"
        "late = ('torch', 'yaml', 'importlib.metadata', 'advisor.cli.commands.init')\n"
        "print(*(name for name in late if name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []
