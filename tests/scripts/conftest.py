"""Fixtures that the tests of scripts share."""

from __future__ import annotations

import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from advisor.records import TargetSpec
from advisor.workloads.entrypoint import load_target
from scripts.steps import BAD, HEAD, STEP


@pytest.fixture(autouse=True)
def own_program(monkeypatch, tmp_path_factory):
    """A script becomes the main program of its process: give the tests theirs back."""
    monkeypatch.setattr(sys, "argv", ["perf-advisor"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(DataLoader, "multiprocessing_context", DataLoader.multiprocessing_context)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("files")))
    torch.manual_seed(0)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a script's text, in an empty folder, up to its loop; returns that and the names of the script."""
    monkeypatch.chdir(tmp_path)

    def run(*parts: str, name: str = "train.py"):
        Path(name).write_text(HEAD + "".join(map(textwrap.dedent, parts)).replace("STEP", STEP))
        loop = load_target(TargetSpec(name, str(tmp_path), device="cpu"))
        return loop, vars(__import__("__main__"))

    return run


@pytest.fixture
def bad(tmp_path):
    """Write one of the scripts that cannot be measured; returns its path."""

    def write(name: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(BAD[name])
        return path

    return write
