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


def loaded_with(module):
    code = (
        f"import sys, importlib; importlib.import_module({module!r})\n"
        "print(*(name for name in ('torch', 'textual', 'numpy') if name in sys.modules))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_importing_it_loads_neither_torch_nor_textual(module):
    assert loaded_with(module) == []


def test_loading_the_recipes_loads_neither():
    code = (
        "import sys\nfrom advisor.recipe.catalog import load_catalog\nassert load_catalog().recipes\n"
        "print(*(name for name in ('torch', 'textual') if name in sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == []


@pytest.mark.skipif(importlib.util.find_spec("advisor.tui") is None, reason="there is no app")
def test_the_app_leaves_torch_out():
    assert "torch" not in loaded_with("advisor.tui.app")
