"""Lightning: a callback that applies exported settings to the module and the optimizers of a Trainer."""

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from advisor.frameworks import of_objects
from advisor.records import Value
from advisor.step.optimizer import UNSCALES
from advisor.step.tuning import Tuning

try:
    import lightning.pytorch as framework
except ImportError:
    import pytorch_lightning as framework

_PRECISIONS: dict[Value, str] = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


class TunedCallback(framework.Callback):  # type: ignore[misc]
    """Applies the settings of a file when a fit starts: ``Trainer(callbacks=[TunedCallback("tuned.yaml")])``.

    The module and its optimizers are changed in place, before a checkpoint is restored into them. Autocast and gradient
    accumulation are set in the Trainer if it has its defaults. Each part of the module is compiled separately, since
    ``training_step`` calls the parts. A warning names the settings that the callback cannot apply.
    """

    def __init__(self, path: str | Path) -> None:
        self.tuning = Tuning.from_file(path)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Set those options that the Trainer reads before it makes the optimizers."""
        if stage != "fit":
            return
        settings = self.tuning.settings
        accumulated = settings.get("step.accumulate", 1)
        # GradientAccumulationScheduler raises an error if the Trainer also accumulates.
        scheduled = any(type(one).__name__ == "GradientAccumulationScheduler" for one in trainer.callbacks)
        if trainer.accumulate_grad_batches == 1 and pl_module.automatic_optimization and not scheduled:
            trainer.accumulate_grad_batches = accumulated
        precision = _PRECISIONS.get(settings.get("precision.autocast", "none"))
        default = type(trainer.precision_plugin)
        if precision is not None and default.__name__ == "Precision":
            # Use this Trainer's package: lightning and pytorch_lightning clip gradients of their own modules only.
            plugins = importlib.import_module(default.__module__.rpartition(".")[0])
            device_type = trainer.strategy.root_device.type
            trainer.strategy.precision_plugin = plugins.MixedPrecision(precision, device_type)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Prepare the module and the optimizers. They exist by now, and no checkpoint is restored yet."""
        of_ddp: dict[str, object] | None = getattr(trainer.strategy, "_ddp_kwargs", None)
        plugin = str(trainer.precision)
        done: dict[str, object] = {
            "precision.autocast": next((name for name, word in _PRECISIONS.items() if word == plugin), "none"),
            "step.accumulate": trainer.accumulate_grad_batches,
            "data.non_blocking": True,  # Lightning always moves batches without blocking
            "parallel.no_sync": True,  # Lightning does this itself while it accumulates
            **({} if of_ddp is None else {f"parallel.{name}": value for name, value in of_ddp.items()}),
            **({} if of_ddp is None else {"parallel.strategy": "ddp"}),
        }
        settings = of_objects(self.tuning.settings, trainer.strategy.root_device.type, done)
        regional = settings.get("compile.scope") == "regional"
        compiled = settings.filtered(lambda key: key.startswith("compile.") and not regional)
        Tuning(settings.filtered(lambda key: key not in compiled)).prepare(pl_module, *trainer.optimizers)
        if plugin.endswith("-mixed"):
            # Lightning refuses to clip gradients if an optimizer is marked to unscale them itself (a fused one is).
            for optimizer in trainer.optimizers:
                vars(optimizer).pop(UNSCALES, None)
        for part in _parts_that_are_called(pl_module) if compiled else []:
            Tuning(compiled).prepare(part)


def _parts_that_are_called(module: nn.Module) -> list[nn.Module]:
    """The modules with parameters directly inside a LightningModule, including those in a ModuleList or ModuleDict."""
    found = []
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += _parts_that_are_called(child)
        elif next(child.parameters(), None) is not None:
            found.append(child)
    return found
