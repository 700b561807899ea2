"""From what the user's target returned to a ``Workload``: one module per framework, tried in turn."""

from __future__ import annotations

from typing import Any

from advisor.records import TargetSpec
from advisor.target import torchvision


def adapt(module_name: str, attribute: str, value: Any, spec: TargetSpec) -> Any:
    """``value`` as a Workload when a framework's adapter knows it, else unchanged."""
    return torchvision.adapt(module_name, attribute, value, spec)
