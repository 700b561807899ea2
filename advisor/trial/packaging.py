"""A model under its tuned settings, exported by ``torch.export`` and compiled to one file by AOTInductor.

Runs in a trial process of its own. Batches come as the user's program has them: what the settings do to them (layout,
type) is inside the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.portable.calls import splitter
from advisor.portable.contexts import attention_of, autocast_of
from advisor.portable.nested import mover
from advisor.portable.plan import StepPlan
from advisor.portable.steps import mover_of
from advisor.recipe.catalog import Catalog
from advisor.records import Mode, Outcome, TrialResult, TrialSpec, Value
from advisor.runtime.loader import is_loader
from advisor.runtime.loop import Loop
from advisor.runtime.tuning import Tuning

# AOTInductor compiles in their place.
_COMPILING = ("compile.", "step.cuda_graph")


class _Call(nn.Module):
    """The model, called as its plan says."""

    def __init__(self, model: nn.Module, plan: StepPlan) -> None:
        super().__init__()
        self.model = model
        self._convert = mover_of(plan)
        self._autocast, self._attention = autocast_of(plan), attention_of(plan)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for inputs that lie on its device."""
        args, kwargs = self._convert((args, kwargs))
        with self._attention(), self._autocast:
            return self.model(*args, **kwargs)


def packaged_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Write the model to ``spec.export_path``, for batches like the first. Raises TargetError or what export does."""
    if loop.mode is not Mode.INFER or loop.step is not None:
        raise TargetError("only a model in inference can be compiled to a file.", "Measure it with --mode infer.")
    started = time.perf_counter()
    tuning = Tuning({**loop.current, **_kept(spec.settings)}, catalog)
    data = sized_data(loop, spec.settings)
    prepared = tuning.prepare(loop.model, data) if is_loader(data) else (tuning.prepare(loop.model), data)
    model, data = prepared
    plan = tuning.infer(model).plan
    batch = mover(device)(next(iter(data)) if is_loader(data) else data)
    inputs = splitter(model, with_target=False)(batch)
    options = {"max_autotune": True} if str(spec.settings.get("compile.mode", "")).startswith("max-autotune") else None
    with torch.no_grad():
        program = torch.export.export(_Call(model, plan).eval(), inputs.args, inputs.kwargs, strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=spec.export_path, inductor_configs=options)
    return TrialResult(Outcome.MEASURED, prepare_s=time.perf_counter() - started)


def sized_data(loop: Loop, settings: dict[str, Value]) -> Any:
    """The loop's data; if that is a callable, its batch of the size that the settings ask for."""
    size = settings.get("data.batch_size")
    return loop.make_batch(size) if loop.make_batch and isinstance(size, int) and size else loop.data


def packaged_step(model: nn.Module, path: str, device: torch.device) -> Callable[[Any], Any]:
    """A step that calls the compiled file as the model would be called."""
    compiled = torch._inductor.aoti_load_package(path)
    split, move = splitter(model, with_target=False), mover(device)

    def step(batch: Any) -> Any:
        inputs = split(move(batch))
        return compiled(*inputs.args, **inputs.kwargs)

    return step


def _kept(settings: dict[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in settings.items() if not key.startswith(_COMPILING)}
