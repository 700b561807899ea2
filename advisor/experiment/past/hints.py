"""Hints from one session to the next of the same workload: the order of candidates and the cost of compiling.

Hints only move candidates forward and say what fits into the budget. No timing is taken over: all is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from advisor.figures.formatting import printable
from advisor.files.state_folder import read_kept, write_kept
from advisor.records import Facts, TargetSpec, Value

FILE = "hints.json"
_SCHEMA = 1
_MOST_WORKLOADS = 200


@dataclass(frozen=True, slots=True)
class Hints:
    """``settings`` of the last confirmed stack, and the wall seconds of a trial that compiled; None when none did."""

    settings: dict[str, Value] = field(default_factory=dict)
    compile_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file: hints by workload, the latest last."""

    schema: int = _SCHEMA
    workloads: dict[str, Hints] = field(default_factory=dict)


def workload_name(target: TargetSpec, facts: Facts) -> str:
    """The key of a workload: the target, the model, its batch, the device and PyTorch's version."""
    workload = facts.workload
    parts = (target.directory, target.command, workload.mode, workload.model, str(workload.parameters))
    return printable(" | ".join((*parts, workload.batch_text, workload.device_name, facts.versions.get("torch", ""))))


def hints_for(name: str) -> Hints:
    """The hints kept for a workload; empty when there are none."""
    return read_kept(FILE, _Kept()).workloads.get(name, Hints())


def keep_hints(name: str, settings: Mapping[str, Value], compile_s: float | None) -> None:
    """Replace the hints with this session's. The compile time is kept until another is measured."""
    kept = read_kept(FILE, _Kept())
    compile_s = compile_s if compile_s is not None else hints_for(name).compile_s
    others = {other: hints for other, hints in kept.workloads.items() if other != name}
    latest = dict(list(others.items())[1 - _MOST_WORKLOADS :])
    kept = replace(kept, workloads={**latest, name: Hints(dict(settings), compile_s)})
    write_kept(FILE, kept)
