"""Files of exported models: ``torch.export`` programs (.pt2) and TorchScript, for inference."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.batch import tensors_of
from advisor.target.hubs.contract import Adapted, Adapter
from advisor.target.resizing import batch_size_of, resize_batch

_PROGRAM = ".pt2"
_FOR_INFERENCE = "Leave --mode train out, or give the model that it was made from: mymodel:build."


class Exported(Adapter):
    """A file instead of a module: the model in it, with the example inputs that it holds."""

    order = 10
    package = "torch"

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Read the file."""
        path = Path(spec.directory, name)
        if spec.mode is Mode.TRAIN:
            raise TargetError(f"{name} is an exported model, which cannot be trained.", _FOR_INFERENCE)
        return _program(path, name) if path.suffix == _PROGRAM else _script(path, name)

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """An exported program in memory, or TorchScript: inference."""
        return _of_program(value, spec) if isinstance(value, torch.export.ExportedProgram) else None


def _program(path: Path, shown: str) -> Any:
    try:
        return torch.export.load(path)
    except Exception as error:  # whatever reading a damaged file raises
        if any("data/aotinductor/" in name for name in _names_in(path)):
            raise TargetError(
                f"{shown} is a package that AOTInductor has compiled: no setting can change it.",
                "Give the program that it was made from, as torch.export.save wrote it.",
            ) from error
        raise _damaged(shown, "torch.export.save", error) from error


def _script(path: Path, shown: str) -> Any:
    try:
        model = torch.jit.load(path, map_location="cpu")
    except Exception as error:
        names = [name.rpartition("/")[2] for name in _names_in(path)]
        if "data.pkl" in names and "constants.pkl" not in names:
            raise TargetError(
                f"{shown} is a file of torch.save, such as a state dict, and no TorchScript.",
                "Load it in a build() of your own that makes the model, and name that: mymodel:build.",
            ) from error
        raise _damaged(shown, "torch.jit.save", error) from error
    return model.eval()


def _damaged(shown: str, writer: str, error: Exception) -> TargetError:
    reason = " ".join(str(error).split())[:160]
    return TargetError(
        f"{shown} cannot be read as a file of {writer}: {type(error).__name__}: {reason}",
        "Write it again; a file that another version of PyTorch wrote may need that version.",
    )


def _names_in(path: Path) -> list[str]:
    """The names in an archive; none where the file is no whole one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _of_program(program: torch.export.ExportedProgram, spec: TargetSpec) -> Any:
    model = program.module()
    # Its own train() and eval() refuse; the flag that they set changes nothing in a program.
    program_module: Any = model
    program_module.train, program_module.eval = MethodType(nn.Module.train, model), MethodType(nn.Module.eval, model)
    model.eval()
    examples = program.example_inputs
    if examples is None:
        return Adapted(model=model, mode=Mode.INFER.value)
    args, kwargs = examples
    if args and kwargs:
        raise TargetError(
            "the program takes inputs by position and by keyword, which no batch is.",
            "Export it with all of them in one of these ways, or call it in a module of your own: mymodel:build.",
        )
    batch: Any = dict(kwargs) if kwargs else args[0] if len(args) == 1 else tuple(args)
    if next(tensors_of(batch), None) is None:
        return Adapted(model=model, mode=Mode.INFER.value)
    notes = ["the program's own example inputs as its batch"]
    if program.range_constraints and spec.batch_size:  # its batch may have any size
        batch = resize_batch(batch, spec.batch_size)
    elif spec.batch_size and spec.batch_size != batch_size_of(batch):
        raise TargetError(
            f"the program was exported for a batch of {batch_size_of(batch)} only.",
            "Leave --batch-size out, or export it with a dynamic batch dimension.",
        )
    return Adapted(model=model, data=batch, mode=Mode.INFER.value, notes=notes)
