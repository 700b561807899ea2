"""Files of exported models: ``torch.export`` programs (.pt2) and TorchScript, for inference."""

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.files.paths import EXPORTED
from advisor.records import Mode, TargetSpec
from advisor.workloads.hubs.contract import Adapter
from advisor.workloads.loop import Loop

_FOR_INFERENCE = "Leave --mode train out, or give the Python model that was exported: mymodel:build."


class Exported(Adapter):
    """A file of an exported model: its model and its example inputs."""

    endings = EXPORTED
    package = "torch"

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Read the file."""
        if spec.mode is Mode.TRAIN:
            raise TargetError(f"{name} is an exported model, which cannot be trained.", _FOR_INFERENCE)
        path = Path(spec.directory, name)
        is_program = path.suffix == ".pt2"
        try:
            return torch.export.load(path) if is_program else torch.jit.load(path, map_location="cpu").eval()
        except Exception as error:  # whatever reading a damaged file raises
            written = "torch.export.save" if is_program else "torch.jit.save"
            raise TargetError(
                f"{name} cannot be read as a file of {written}: {' '.join(str(error).split())[:160]}",
                "Write it again with this version of PyTorch. If the file is a state dict or an AOTInductor package, "
                "give a build() that makes the model instead: mymodel:build.",
            ) from error

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """The inference loop of an exported program."""
        if not isinstance(value, torch.export.ExportedProgram):
            return None
        model: Any = value.module()
        # A program's own train() and eval() raise. These set only the flag, which does not change the program.
        model.train, model.eval = (MethodType(one, model) for one in (nn.Module.train, nn.Module.eval))
        model.eval()
        examples = value.example_inputs
        if examples is None:
            return Loop(model=model, mode=Mode.INFER)
        args, kwargs = examples
        batch: Any = dict(kwargs) if kwargs else args[0] if len(args) == 1 else tuple(args)
        notes = ["the batch is the program's own example inputs"]
        hint = "Leave --batch-size out: a program takes other sizes only if it was exported with dynamic sizes."
        return Loop(model=model, data=batch, mode=Mode.INFER, notes=notes, hint=hint)
