"""An exported file, loaded and applied to the target's own loop, and that loop timed; and the file of a compiled model.

Runs in a trial process of its own, like the loop without the file that it is compared with.
"""

import importlib.util
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Block, Mode, Outcome, TrialResult, TrialSpec, Value
from advisor.step.batch import mover, splitter, tensors_of
from advisor.step.compile import Models
from advisor.step.loss import default_loss
from advisor.step.optimizer import optimizers_in
from advisor.step.prefetch import is_loader
from advisor.step.step import Step, mover_of
from advisor.step.tuning import Tuning
from advisor.target.loop import Loop
from advisor.trial.measurement.clock import batch_samples
from advisor.trial.measurement.draws import no_batch
from advisor.trial.measurement.probe import sample_of

COMPILED_MODEL = ".pt2"
# Steps in which compiling, choosing kernels and capturing a graph happen. Count.
_FIRST_STEPS = 6
# A loop is steady when a block is not faster than the one before by more than this share. Unitless.
_STEADY = 0.03
_BLOCKS = 5
_SETTLING_BLOCKS = 8

# Arguments of a train_step that needs no loss. A count.
_MODEL_AND_OPTIMIZER = 2


def verified_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Time the user's loop: with the file of ``spec.export_path`` applied, or as it is where that is empty."""
    started = time.perf_counter()
    step, data = _applied(loop, device, catalog, spec)
    prepare_s = time.perf_counter() - started
    size = spec.settings.get("data.batch_size") if spec.export_path else None
    batch_size = int(size) if isinstance(size, int) and size else loop.batch_size
    compiled = spec.export_path.endswith(COMPILED_MODEL)
    batches, backend = _batches(data, device, of_size=batch_size if compiled else None), backend_of(device)
    outputs = sample_of(step(next(batches))) if loop.mode is Mode.INFER else ()

    def run(steps: int) -> Block:
        """Steps in a row, waited for at their end only."""
        samples = 0
        begun = time.perf_counter()
        for batch in itertools.islice(batches, steps):
            last = step(batch)
            samples += batch_samples(batch, batch_size or 1)
        backend.synchronize()
        block = Block(steps, samples, time.perf_counter() - begun)
        if not all(bool(torch.isfinite(one).all()) for one in tensors_of(last) if one.is_floating_point()):
            problem = "the loss or the output is not finite."
            raise TargetError(problem, "Reject the setting that causes it, and export again.")
        return block

    started = time.perf_counter()
    steps = _settled(run, spec.measure_s / _BLOCKS)
    warmup_s = time.perf_counter() - started
    blocks = tuple(run(steps) for _ in range(_BLOCKS))
    return TrialResult(
        Outcome.MEASURED, batch_size=batch_size, blocks=blocks, prepare_s=prepare_s, warmup_s=warmup_s, outputs=outputs
    )


def _settled(run: Callable[[int], Block], block_s: float) -> int:
    """Run until a block is no faster than the one before it; return the number of steps in a block."""
    run(_FIRST_STEPS)
    each_s = min(run(1).seconds, run(1).seconds)
    steps = max(1, round(block_s / each_s))
    before = math.inf
    for _ in range(_SETTLING_BLOCKS):
        now = run(steps).seconds
        if now >= before * (1 - _STEADY):
            break
        before = now
    return steps


def _applied(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> tuple[Callable[[Any], Any], Any]:
    """The step and the data of the loop, with the file applied to them as its usage says."""
    path = spec.export_path
    data = sized_data(loop, spec.settings) if path else loop.data
    if path.endswith(COMPILED_MODEL):
        batches = Tuning(spec.settings, catalog).prepare(loop.model, data)[1] if is_loader(data) else data
        return packaged_step(loop.model, path, device), batches
    if path.endswith(".py"):
        return _by_python_file(loop, path, data)
    own = dict(loop.current)
    tuning = Tuning({**own, **Settings.from_file(path)} if path else own, catalog)
    loaders = [data] if is_loader(data) else []
    if loop.step is not None:
        models = list(loop.model) if isinstance(loop.model, Models) else [loop.model]
        prepared = tuning.prepare(*models, *optimizers_in(loop.optimizer), *loaders)
        return tuning.own_step(loop.step, models[0]), prepared[-1] if loaders else data
    if loop.mode is Mode.INFER:
        model, *loaders = tuning.prepare(loop.model, *loaders) if loaders else [tuning.prepare(loop.model)]
        return tuning.infer(model), loaders[0] if loaders else data
    model, optimizer, *loaders = tuning.prepare(loop.model, loop.optimizer, *loaders)
    step = tuning.train_step(
        model, optimizer, loop.loss, clip_grad=loop.clip_norm, loss_form=None if loop.loss is None else spec.loss_form
    )
    return step, loaders[0] if loaders else data


def _by_python_file(loop: Loop, path: str, data: Any) -> tuple[Callable[[Any], Any], Any]:
    """The step of an exported Python file, used as its header shows."""
    found = importlib.util.spec_from_file_location("perf_advisor_exported", Path(path).resolve())
    assert found is not None, "a file that ends in .py"
    assert found.loader is not None, "a file that ends in .py"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    loader = data if is_loader(data) else None
    models = list(loop.model) if isinstance(loop.model, Models) else [loop.model]
    optimizers = optimizers_in(loop.optimizer)[: len(models)] if loop.step is not None else [loop.optimizer]
    first: list[Any] = []
    for pair in itertools.zip_longest(models, optimizers):
        *prepared, loader = module.prepare(*pair, loader)
        first = first or prepared
    model, optimizer = first
    if loop.step is not None:
        step = module.own_step(loop.step, model)
    elif loop.mode is Mode.INFER:
        step = module.infer_step(model)
    else:
        model.train()
        takes_loss = len(inspect.signature(module.train_step).parameters) > _MODEL_AND_OPTIMIZER
        loss = [default_loss if loop.loss is None else loop.loss] if takes_loss else []
        step = module.train_step(model, optimizer, *loss)
    return step, data if loader is None else loader


def _batches(data: Any, device: torch.device, *, of_size: int | None = None) -> Iterator[Any]:
    """The loader's batches, epoch after epoch; the one batch, on the device already, again and again.

    ``of_size``: of a loader those of so many samples only, where not None.
    """
    if not is_loader(data):
        yield from itertools.repeat(mover(device)(data))
    while True:
        batch = None
        for batch in data:
            if of_size is None or batch_samples(batch, of_size) == of_size:
                yield batch
        if batch is None:
            raise no_batch()


# AOTInductor compiles in their place.
_COMPILING = ("compile.", "step.cuda_graph")


class _Call(nn.Module):
    """The model, called as its plan says."""

    def __init__(self, model: nn.Module, plan: StepPlan) -> None:
        super().__init__()
        self.model = model
        self._convert = mover_of(plan)
        self._contexts = Step(model, plan).contexts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for inputs that lie on its device."""
        args, kwargs = self._convert((args, kwargs))
        with self._contexts():
            return self.model(*args, **kwargs)


def packaged_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Write the model to ``spec.export_path``, for batches like the first. Raises TargetError or what export does."""
    if loop.mode is not Mode.INFER or loop.step is not None:
        raise TargetError("only a model in inference can be compiled to a file.", "Measure it with --mode infer.")
    from torch._inductor.config import aot_inductor

    started = time.perf_counter()
    kept = {key: value for key, value in spec.settings.items() if not key.startswith(_COMPILING)}
    tuning = Tuning({**loop.current, **kept}, catalog)
    data = sized_data(loop, spec.settings)
    prepared = tuning.prepare(loop.model, data) if is_loader(data) else (tuning.prepare(loop.model), data)
    model, data = prepared
    plan = tuning.infer(model).plan
    batch = mover(device)(next(iter(data)) if is_loader(data) else data)
    inputs = splitter(model, with_target=False)(batch)
    options = {"max_autotune": True} if str(spec.settings.get("compile.mode", "")).startswith("max-autotune") else {}
    if hasattr(aot_inductor, "precompile_headers"):
        options["aot_inductor.precompile_headers"] = False  # for one file they take longer than they save
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
