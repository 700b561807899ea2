"""What the tests of scripts share."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def own_program(monkeypatch):
    """A script becomes the main program of its process: give the tests theirs back."""
    monkeypatch.setattr(sys, "argv", ["perf-advisor"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    torch.manual_seed(0)
